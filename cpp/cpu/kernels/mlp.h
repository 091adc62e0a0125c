#pragma once

#include "cpu/level.h"
#include "ops/mlp_job.h"

namespace fourfold::cpu {

using MlpKernel = void(const MlpForward& job);
using MlpBackwardKernel = void(const MlpBackward& job);

FOURFOLD_CPU_KERNEL(mlp, MlpKernel)
FOURFOLD_CPU_KERNEL(mlp_backward, MlpBackwardKernel)

}  // namespace fourfold::cpu
