// The activations of an MLP's hidden layers, each one pass over the result of torch's product.
#pragma once

#include "map.h"
#include "ops/mlp_layers_job.h"

namespace fourfold::mps {

// `label`: the operator's name.
void activate(const char* label, Activation activation, const Elementwise& z);
void activate_backward(const char* label, Activation activation, const Elementwise& grad_and_kept);

}  // namespace fourfold::mps
