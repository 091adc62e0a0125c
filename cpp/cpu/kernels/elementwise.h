// An elementwise operator's kernels: compiled from elementwise.cpp for each operator of CMake's list, at each CPU level.
#pragma once

#include "cpu/level.h"
#include "ops/elementwise_job.h"

namespace fourfold::cpu {

// Compute the elements [begin, end) of the result.
struct ElementwiseParts {
  void (*forward)(const Elementwise& job, int64_t begin, int64_t end);
  void (*backward)(const Elementwise& job, int64_t begin, int64_t end);  // null for a formula without one
};

using ElementwisePartsOf = const ElementwiseParts&();

}  // namespace fourfold::cpu
