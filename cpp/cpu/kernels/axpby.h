#pragma once

#include "cpu/level.h"
#include "cpu/kernels/strided.h"

namespace fourfold::cpu {

// out (n, contiguous) = alpha x + beta y, all three of one type; in an integer type alpha and beta are whole numbers.
using AxpbyKernel = void(Kind kind, int64_t n, void* out, Strided x, Strided y, double alpha, double beta);

FOURFOLD_CPU_KERNEL(axpby, AxpbyKernel)

}  // namespace fourfold::cpu
