// Direct depthwise convolutions: the inner loop adds a row of the input, times one weight, to a row of the output.
#pragma once

#include "convolution.h"

namespace fourfold::graph {

// result: contiguous, or channels-last, as the convolution says.
template <typename T>
void convolve_depthwise(const Convolution& of, T* result);

}  // namespace fourfold::graph
