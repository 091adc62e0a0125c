// Activations of layers that the vendor's product made.
#pragma once

#include "cpu/level.h"
#include "ops/elementwise_job.h"
#include "ops/mlp_layers_job.h"

namespace fourfold::cpu {

// From `begin` up to `end` of the result: of z, and of the gradient and what the activation's backward needs.
using ActivateKernel = void(Activation activation, const Elementwise& job, int64_t begin, int64_t end);

FOURFOLD_CPU_KERNEL(activate, ActivateKernel)
FOURFOLD_CPU_KERNEL(activate_backward, ActivateKernel)

}  // namespace fourfold::cpu
