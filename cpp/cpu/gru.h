#pragma once

#include "cpu/level.h"
#include "ops/recurrent_job.h"

namespace fourfold::cpu {

using GruKernel = void(const RecurrentForward& job);
using GruBackwardKernel = void(const RecurrentBackward& job);
using GruBytesKernel = int64_t(const RecurrentLayer& layer);
using GruPrepackKernel = void(const RecurrentLayer& layer, void* prepacked);

FOURFOLD_CPU_KERNEL(gru, GruKernel)
FOURFOLD_CPU_KERNEL(gru_backward, GruBackwardKernel)
FOURFOLD_CPU_KERNEL(gru_prepacked_bytes, GruBytesKernel)
FOURFOLD_CPU_KERNEL(gru_prepack, GruPrepackKernel)

}  // namespace fourfold::cpu
