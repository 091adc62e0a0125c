// The activations of perceptrons' hidden layers, in one pass over layers that torch's product made.
#pragma once

#include "map.h"
#include "ops/mlp_layers_job.h"

namespace fourfold::mps {

// `label`: the operator's.
void activate(const char* label, Activation activation, const Elementwise& z);
void activate_backward(const char* label, Activation activation, const Elementwise& grad_and_kept);

}  // namespace fourfold::mps
