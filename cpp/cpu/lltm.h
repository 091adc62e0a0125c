#pragma once

#include "cpu/level.h"
#include "ops/recurrent_job.h"

namespace fourfold::cpu {

using LltmKernel = void(const RecurrentForward& job);
using LltmBackwardKernel = void(const RecurrentBackward& job);
using LltmBytesKernel = int64_t(const RecurrentLayer& layer);
using LltmPrepackKernel = void(const RecurrentLayer& layer, void* prepacked);

FOURFOLD_CPU_KERNEL(lltm, LltmKernel)
FOURFOLD_CPU_KERNEL(lltm_backward, LltmBackwardKernel)
FOURFOLD_CPU_KERNEL(lltm_prepacked_bytes, LltmBytesKernel)
FOURFOLD_CPU_KERNEL(lltm_prepack, LltmPrepackKernel)

}  // namespace fourfold::cpu
