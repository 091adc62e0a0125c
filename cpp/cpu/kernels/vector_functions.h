// The elementary functions of programs for one vector of the CPU level in use. Code compiled at run time calls them.
#pragma once

#include <cstdint>

#include "cpu/level.h"
#include "program/operations.h"

namespace fourfold::cpu {

// The address of a function that takes the operation's operands and returns its result, as native vectors by value:
// __m256 and __m256d, __m512 and __m512d, float32x4_t and float64x2_t. 0 for other operations and types, and for levels
// without vectors.
using VectorFunction = uintptr_t(program::Operation op, program::Type type);

FOURFOLD_CPU_KERNEL(vector_function, VectorFunction)

}  // namespace fourfold::cpu
