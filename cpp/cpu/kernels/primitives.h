// The primitives of pointwise programs on the CPU: functions that compute one operation for a block of elements, compiled at
// each CPU level. A schedule (cpu/program/schedule.h) lists them; cpu/program/run.cpp calls them, block by block.
#pragma once

#include <cstdint>

#include "cpu/level.h"
#include "ops/kind.h"
#include "program/operations.h"

namespace fourfold::cpu {

// A value's elements of the present block, side by side, or with a stride of 0 one that stands for all.
struct Slot {
  void* data;
  int64_t stride;
};

// Out of and into slots. `out` may be one of the operands'.
struct Instruction;
struct Frame;
using Primitive = void(Frame& frame, int64_t count, const Instruction& at);

struct Instruction {
  Primitive* run;
  uint16_t out;
  uint16_t second;  // of sin and cos together, the cosine
  uint16_t in[3];
};

// A block: some rows with all their columns, or some columns of one row.
struct Frame {
  Slot* slots;
  int64_t rows;
  int64_t columns;
  bool first;  // of a row's blocks, from which reductions begin
  // What the next block reads and writes, to be fetched while this one is computed: by the operations that take long, each
  // of which takes its share of what is left.
  static constexpr int most_ahead = 8;
  int ahead_count = 0;
  int ahead_each = 0;
  const char* ahead[most_ahead] = {};
};

// From this cost on an operation takes long enough to fetch what the next block reads and writes.
constexpr bool is_expensive(program::Operation op) { return program::describe(op).cost >= 10; }

// Of a block, at most.
inline constexpr int64_t most_elements = 1024;

// Reductions keep sums and products of float32 in float64.
constexpr program::Type type_of_sum(program::Operation op, program::Type type) {
  const bool adds_up = op == program::Operation::sum || op == program::Operation::prod;
  return adds_up && type == program::Type::float32 ? program::Type::float64 : type;
}

// Of an operation on operands of that type: of where's, the second and third. Null for what has none there.
using PrimitiveOf = Primitive*(program::Operation op, program::Type type);
// From memory's kind to the type that it is computed in, and back, where these differ.
using ConversionOf = Primitive*(Kind kind);
using PrimitiveFor = Primitive*(program::Type type);
// Of two operations at once: the outer on what the inner gives, as its first operand or its second, and one more.
using PrimitiveOfTwo = Primitive*(program::Operation inner, program::Operation outer, bool is_second, program::Type type);

FOURFOLD_CPU_KERNEL(floating_primitive, PrimitiveOf)
FOURFOLD_CPU_KERNEL(paired_primitive, PrimitiveOfTwo)    // of in[0], in[1]; and in[2]: null but for sums and products
FOURFOLD_CPU_KERNEL(plain_primitive, PrimitiveOf)
FOURFOLD_CPU_KERNEL(reduction_primitive, PrimitiveOf)
FOURFOLD_CPU_KERNEL(combine_primitive, PrimitiveOf)      // of partial results: in[0]'s into out's
FOURFOLD_CPU_KERNEL(column_sum_primitive, PrimitiveFor)       // adds each row's columns to those of out, which are float64
FOURFOLD_CPU_KERNEL(half_load_primitive, ConversionOf)   // float16, bfloat16
FOURFOLD_CPU_KERNEL(half_store_primitive, ConversionOf)
FOURFOLD_CPU_KERNEL(plain_load_primitive, ConversionOf)  // the small integers
FOURFOLD_CPU_KERNEL(plain_store_primitive, ConversionOf)
FOURFOLD_CPU_KERNEL(sincos_primitive, PrimitiveFor)      // the sine into out, the cosine into second
FOURFOLD_CPU_KERNEL(expand_primitive, PrimitiveFor)      // a row's value for each of its columns
FOURFOLD_CPU_KERNEL(copy_primitive, PrimitiveFor)

}  // namespace fourfold::cpu
