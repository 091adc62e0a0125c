#pragma once

#include "cpu/level.h"
#include "ops/recurrent_job.h"

namespace fourfold::cpu {

using LltmKernel = void(const RecurrentForward& job);
using LltmBackwardKernel = void(const RecurrentBackward& job);

FOURFOLD_CPU_KERNEL(lltm, LltmKernel)
FOURFOLD_CPU_KERNEL(lltm_backward, LltmBackwardKernel)

}  // namespace fourfold::cpu
