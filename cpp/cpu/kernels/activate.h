// Activations of layers computed by the vendor's product.
#pragma once

#include "cpu/level.h"
#include "ops/elementwise_job.h"
#include "ops/mlp_layers_job.h"

namespace fourfold::cpu {

// Computes elements [begin, end) of the result. Inputs: z; or, backward, the gradient and kept, see keeps_input().
using ActivateKernel = void(Activation activation, const Elementwise& job, int64_t begin, int64_t end);

FOURFOLD_CPU_KERNEL(activate, ActivateKernel)
FOURFOLD_CPU_KERNEL(activate_backward, ActivateKernel)

}  // namespace fourfold::cpu
