// Convolutions whose output channels read one channel each, as sums of shifted lines.
#pragma once

#include "convolution.h"

namespace fourfold::graph {

// result: contiguous, or channels-last, as the convolution says.
template <typename T>
void convolve_depthwise(const Convolution& of, T* result);

}  // namespace fourfold::graph
