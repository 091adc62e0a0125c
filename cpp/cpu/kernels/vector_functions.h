// The floating-point functions of programs in the vectors of the CPU level in use.
#pragma once

#include <cstdint>

#include "cpu/level.h"
#include "ops/kind.h"
#include "program/operations.h"

namespace fourfold::cpu {

// The address of an elementary function that takes the operation's operands and returns its result, as native vectors by
// value: __m256 and __m256d, __m512 and __m512d, float32x4_t and float64x2_t. Code compiled at run time calls it. 0 for
// other operations and types, and for levels without vectors.
using VectorFunction = uintptr_t(program::Operation op, program::Type type);

// An operand of a function of arrays: contiguous elements (step 1), or `chunk` copies of one that is the same for all
// (step 0).
struct Operand {
  const void* data;
  int64_t step;
};
inline constexpr int64_t chunk = 64;  // a multiple of every vector's lanes

// A function of arrays: to[k] = f(from[0][k], from[1][k], ...). `to` may be one of the operands.
using ArrayFunction = void(int64_t count, const Operand* from, void* to);
// Null for operations that aren't of the rule `floating`.
using ArrayFunctionOf = ArrayFunction*(program::Operation op, program::Type type);
// Converts float16 or bfloat16 to float32, or back.
using HalfConversion = ArrayFunction*(Kind kind);

FOURFOLD_CPU_KERNEL(vector_function, VectorFunction)
FOURFOLD_CPU_KERNEL(array_function, ArrayFunctionOf)
FOURFOLD_CPU_KERNEL(widening, HalfConversion)
FOURFOLD_CPU_KERNEL(narrowing, HalfConversion)

}  // namespace fourfold::cpu
