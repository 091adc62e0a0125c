#pragma once

#include "cpu/level.h"
#include "ops/recurrent_job.h"

namespace fourfold::cpu {

using GruKernel = void(const RecurrentForward& job);
using GruBackwardKernel = void(const RecurrentBackward& job);

FOURFOLD_CPU_KERNEL(gru, GruKernel)
FOURFOLD_CPU_KERNEL(gru_backward, GruBackwardKernel)

}  // namespace fourfold::cpu
