// The functions that cpp/formulas/ need on a GPU.
#pragma once

#include "device.cuh"
#include "numbers.cuh"

namespace fourfold::gpu {

using numbers::exp;
using numbers::expm1;
using numbers::select;
using numbers::tanh;

// Within one unit in the last place: on NVIDIA a division takes longer than the exponential.
FOURFOLD_FN float reciprocal(float x) {
#if defined(USE_ROCM)
  return 1.0f / x;
#else
  float result;
  asm("rcp.approx.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
#endif
}

FOURFOLD_FN float sigmoid(float x) { return reciprocal(1.0f + exp(-x)); }
FOURFOLD_FN double sigmoid(double x) { return numbers::sigmoid(x); }

}  // namespace fourfold::gpu
