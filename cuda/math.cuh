// The functions that cpp/formulas/ need on a GPU.
#pragma once

#include "device.cuh"
#include "numbers.cuh"

namespace fourfold::gpu {

using numbers::exp;
using numbers::expm1;
using numbers::select;
using numbers::sigmoid;
using numbers::tanh;

}  // namespace fourfold::gpu
