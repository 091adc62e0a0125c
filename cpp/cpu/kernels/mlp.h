#pragma once

#include "cpu/level.h"
#include "ops/mlp_job.h"

namespace fourfold::cpu {

// One pass over a hidden layer that the vendor's product made: in place, its bias is in already.
using ReluKernel = void(Kind kind, int64_t n, void* values);
// grad_hidden in place, from the activated hidden layer.
using ReluBackwardKernel = void(Kind kind, int64_t n, void* grad, const void* activated);
using MlpKernel = void(const MlpForward& job);
using MlpBackwardKernel = void(const MlpBackward& job);

FOURFOLD_CPU_KERNEL(mlp, MlpKernel)
FOURFOLD_CPU_KERNEL(mlp_backward, MlpBackwardKernel)
FOURFOLD_CPU_KERNEL(relu, ReluKernel)
FOURFOLD_CPU_KERNEL(relu_backward, ReluBackwardKernel)

}  // namespace fourfold::cpu
