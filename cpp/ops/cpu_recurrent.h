// The CPU's table of a recurrent layer's kernels.
#pragma once

#include "cpu/level.h"
#include "ops/recurrent.h"

namespace fourfold {

inline bool computes_on_cpu(ScalarType) { return false; }

template <const auto& forward_kernel, const auto& backward_kernel>
inline constexpr RecurrentKernels recurrent_on_cpu{
    computes_on_cpu,
    [](const RecurrentForward& job) { forward_kernel(job); },
    [](const RecurrentBackward& job) { backward_kernel(job); },
    nullptr,
    nullptr,
};

}  // namespace fourfold
