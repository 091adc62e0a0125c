// The activations of hidden layers, in one pass over layers computed by the vendor's product.
#pragma once

#include <cmath>

#include "elementwise.cuh"
#include "math.cuh"
#include "ops/mlp_layers_job.h"

namespace fourfold::gpu {
namespace formulas {

FOURFOLD_FN float erf(float x) { return ::erff(x); }
FOURFOLD_FN double erf(double x) { return ::erf(x); }

#include "formulas/activations.h"
}  // namespace formulas

// Defined in mlp_layers.cu.
void activate(Activation activation, const Elementwise& z);
void activate_backward(Activation activation, const Elementwise& grad_and_kept);

}  // namespace fourfold::gpu
