// The primitives of pointwise programs on the CPU: functions that compute one operation for a block of elements,
// compiled for each CPU level. A schedule (cpu/program/schedule.h) lists them; a worker (cpu/program/worker.h) calls
// them for each block.
#pragma once

#include <cstdint>

#include "cpu/level.h"
#include "ops/kind.h"
#include "program/operations.h"

namespace fourfold::cpu {

// A value's elements in the current block: contiguous, or, with stride 0, one for all elements.
struct Slot {
  void* data;
  int64_t stride;
};

// Reads and writes slots. `out` may be one of the operands' slots.
struct Instruction;
struct Frame;
using Primitive = void(Frame& frame, int64_t count, const Instruction& at);

struct Instruction {
  Primitive* run;
  uint16_t out;
  uint16_t second;  // the cosine of a combined sin and cos
  uint16_t in[3];
};

// A block: some rows with all their columns, or some columns of one row.
struct Frame {
  Slot* slots;
  int64_t rows;
  int64_t columns;
  bool first;  // the first block of a row, where reductions start
  // The addresses that the next block accesses. Expensive operations prefetch them while they compute this block; each
  // takes a share of the remaining ones.
  static constexpr int most_ahead = 8;
  int ahead_count = 0;
  int ahead_each = 0;
  const char* ahead[most_ahead] = {};
};

// Whether an operation is expensive enough to hide prefetches of the next block.
constexpr bool is_expensive(program::Operation op) { return program::describe(op).cost >= 10; }

// The maximum number of elements of a block.
inline constexpr int64_t most_elements = program::reduction_block;

// Reductions accumulate sums and products of float32 in float64.
constexpr program::Type type_of_sum(program::Operation op, program::Type type) {
  using program::Operation;
  const bool adds_up = op == Operation::sum || op == Operation::prod || op == Operation::sum_float64;
  return adds_up && type == program::Type::float32 ? program::Type::float64 : type;
}

// The primitive of an operation on operands of that type (for where: its second and third operand). Null if there is
// none.
using PrimitiveOf = Primitive*(program::Operation op, program::Type type);
// Converts from memory's dtype to the compute type and back, if these differ.
using ConversionOf = Primitive*(Kind kind);
using PrimitiveFor = Primitive*(program::Type type);
// A primitive of two operations: the outer one takes the inner one's result as its first or second operand.
using PrimitiveOfTwo = Primitive*(program::Operation inner, program::Operation outer, bool is_second, program::Type type);

FOURFOLD_CPU_KERNEL(floating_primitive, PrimitiveOf)
FOURFOLD_CPU_KERNEL(paired_primitive, PrimitiveOfTwo)    // inner: in[0], in[1]; outer: in[2]. Only add, sub and mul
FOURFOLD_CPU_KERNEL(plain_primitive, PrimitiveOf)
FOURFOLD_CPU_KERNEL(reduction_primitive, PrimitiveOf)
FOURFOLD_CPU_KERNEL(combine_primitive, PrimitiveOf)      // combines the partial results of in[0] into out
FOURFOLD_CPU_KERNEL(column_sum_primitive, PrimitiveFor)       // adds each row's columns to out, which is float64
FOURFOLD_CPU_KERNEL(half_load_primitive, ConversionOf)   // float16, bfloat16
FOURFOLD_CPU_KERNEL(half_store_primitive, ConversionOf)
FOURFOLD_CPU_KERNEL(plain_load_primitive, ConversionOf)  // the small integers
FOURFOLD_CPU_KERNEL(plain_store_primitive, ConversionOf)
FOURFOLD_CPU_KERNEL(sincos_primitive, PrimitiveFor)      // the sine into out, the cosine into second
FOURFOLD_CPU_KERNEL(expand_primitive, PrimitiveFor)      // broadcasts a row's value to its columns
FOURFOLD_CPU_KERNEL(copy_primitive, PrimitiveFor)

}  // namespace fourfold::cpu
