#pragma once

#include "cpu/level.h"
#include "cpu/kernels/strided.h"

namespace fourfold::cpu {

// out (n, contiguous) from inputs of the same floating point type.
using SoftshrinkKernel = void(Kind kind, int64_t n, void* out, Strided x, double lambd);
using SoftshrinkBackwardKernel = void(Kind kind, int64_t n, void* out, Strided grad, Strided x, double lambd);

FOURFOLD_CPU_KERNEL(softshrink, SoftshrinkKernel)
FOURFOLD_CPU_KERNEL(softshrink_backward, SoftshrinkBackwardKernel)

}  // namespace fourfold::cpu
