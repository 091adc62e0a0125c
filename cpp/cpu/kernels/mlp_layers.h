#pragma once

#include "cpu/level.h"
#include "cpu/kernels/strided.h"
#include "ops/mlp_layers_job.h"

namespace fourfold::cpu {

using LayersForwardKernel = void(const LayersForward& job);
using LayersBackwardKernel = void(const LayersBackward& job);
// Over n elements, for layers that the vendor's product made. `kept` as the activation's backward needs it.
using ActivateKernel = void(Kind kind, Activation activation, int64_t n, void* out, Strided z);
using ActivateBackwardKernel = void(Kind kind, Activation activation, int64_t n, void* out, Strided grad, Strided kept);
// Bits of relu's values (rows, columns), contiguous, and back to 0 and 1. `step` counts bytes from row to row of bits.
using PackBitsKernel = void(Kind kind, int64_t rows, int64_t columns, const void* values, void* bits, int64_t step);
using UnpackBitsKernel = void(Kind kind, int64_t rows, int64_t columns, const void* bits, int64_t step, void* values);

FOURFOLD_CPU_KERNEL(mlp_layers, LayersForwardKernel)
FOURFOLD_CPU_KERNEL(mlp_layers_backward, LayersBackwardKernel)
FOURFOLD_CPU_KERNEL(activate, ActivateKernel)
FOURFOLD_CPU_KERNEL(activate_backward, ActivateBackwardKernel)
FOURFOLD_CPU_KERNEL(pack_bits, PackBitsKernel)
FOURFOLD_CPU_KERNEL(unpack_bits, UnpackBitsKernel)

}  // namespace fourfold::cpu
