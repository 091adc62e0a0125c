#pragma once

#include "cpu/level.h"
#include "ops/mlp_layers_job.h"

namespace fourfold::cpu {

using LayersForwardKernel = void(const LayersForward& job);
using LayersBackwardKernel = void(const LayersBackward& job);
// Pack relu's contiguous values (rows, columns) to bits, and unpack them to 0 and 1. step: bytes from row to row of
// bits.
using PackBitsKernel = void(Kind kind, int64_t rows, int64_t columns, const void* values, void* bits, int64_t step);
using UnpackBitsKernel = void(Kind kind, int64_t rows, int64_t columns, const void* bits, int64_t step, void* values);

FOURFOLD_CPU_KERNEL(mlp_layers, LayersForwardKernel)
FOURFOLD_CPU_KERNEL(mlp_layers_backward, LayersBackwardKernel)
FOURFOLD_CPU_KERNEL(pack_bits, PackBitsKernel)
FOURFOLD_CPU_KERNEL(unpack_bits, UnpackBitsKernel)

}  // namespace fourfold::cpu
