// The surroundings that cpp/formulas/ need on a GPU.
#pragma once

#include <cmath>

#include "device.cuh"

namespace fourfold::gpu {

FOURFOLD_FN float exp(float x) { return ::expf(x); }
FOURFOLD_FN double exp(double x) { return ::exp(x); }
FOURFOLD_FN float expm1(float x) { return ::expm1f(x); }
FOURFOLD_FN double expm1(double x) { return ::expm1(x); }
FOURFOLD_FN float tanh(float x) { return ::tanhf(x); }
FOURFOLD_FN double tanh(double x) { return ::tanh(x); }

template <typename T>
FOURFOLD_FN T sigmoid(T x) {
  return T(1) / (T(1) + exp(-x));
}

template <typename T>
FOURFOLD_FN T select(bool mask, T yes, T no) {
  return mask ? yes : no;
}

}  // namespace fourfold::gpu
