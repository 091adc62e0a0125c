// Convolutions with few output positions as matrix products: torch's kernels take tens of microseconds for any size,
// because they prepare each call and copy the weights into their own layout.
#pragma once

#include <ATen/core/stack.h>

#include "packed_weights.h"

namespace fourfold::graph {

// Replaces the arguments of aten::convolution by the result: the elements under the window at each position, gathered
// as rows, times the weights. own: packs them, unless null. Returns false and does nothing for many positions, for other
// dtypes than float32 and float64, for tensors without memory of their own, and for arguments that torch may reject.
bool convolve_few_positions(torch::jit::Stack& stack, PackedWeights* own);

}  // namespace fourfold::graph
