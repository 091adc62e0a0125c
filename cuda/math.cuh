// The functions that cpp/formulas/ need on a GPU.
#pragma once

#include "device.cuh"
#include "numbers.cuh"

namespace fourfold::gpu {

using numbers::exp;
using numbers::expm1;
using numbers::select;
using numbers::tanh;

FOURFOLD_FN float sigmoid(float x) { return approximate_reciprocal(1.0f + exp(-x)); }
FOURFOLD_FN double sigmoid(double x) { return numbers::sigmoid(x); }

}  // namespace fourfold::gpu
