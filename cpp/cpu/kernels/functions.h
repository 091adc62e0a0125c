// The interpreter's functions on contiguous arrays: one operation of a program each. Compiled for each CPU level.
#pragma once

#include <cstdint>

#include "cpu/kernels/vector_functions.h"
#include "cpu/level.h"
#include "ops/kind.h"
#include "program/operations.h"

namespace fourfold::cpu {

// A reduction's functions. The order of elements depends only on their number and on the level's vectors.
struct Reduction {
  // Combines each row's columns, at most program::reduction_block of them, with the row's total. starts: whether totals
  // start at the reduction's identity.
  void (*add)(int64_t rows, int64_t columns, const void* from, bool starts, void* totals);
  void (*combine)(const void* other, void* total);
};

// The type of a reduction's totals: sums and products of float32 are accumulated in float64.
constexpr program::Type type_of_total(program::Operation op, program::Type type) {
  using program::Operation;
  const bool adds_up = op == Operation::sum || op == Operation::prod || op == Operation::sum_float64;
  return adds_up && type == program::Type::float32 ? program::Type::float64 : type;
}

using ConversionOf = ArrayFunction*(Kind kind);
using CopyOf = ArrayFunction*(int64_t size);
using ReductionOf = Reduction(program::Operation op, program::Type type);
// Repeats each row's element for its columns. size: of an element, in bytes.
using RepeatRows = void(int64_t size, int64_t rows, int64_t columns, const void* from, void* to);
// Adds rows to their columns' sums of the same type, one row after the other.
using AddRows = void(program::Type type, int64_t rows, int64_t columns, const void* from, void* to);

// The function of an operation on operands of that type (for where: its second and third operand).
FOURFOLD_CPU_KERNEL(function_of, ArrayFunctionOf)
// Converts from memory's dtype to the compute type and back; null if they are the same.
FOURFOLD_CPU_KERNEL(load_of, ConversionOf)
FOURFOLD_CPU_KERNEL(store_of, ConversionOf)
FOURFOLD_CPU_KERNEL(copy_of, CopyOf)
FOURFOLD_CPU_KERNEL(reduction_of, ReductionOf)
FOURFOLD_CPU_KERNEL(repeat_rows, RepeatRows)
FOURFOLD_CPU_KERNEL(add_rows, AddRows)

}  // namespace fourfold::cpu
