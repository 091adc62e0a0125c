// Convolutions with many positions, where torch's kernels are far from the processor's peak.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "convolution.h"
#include "packed_weights.h"

namespace fourfold::graph {

// The convolution, of one dimension, if products of blocks of positions are faster than torch's kernel. is_packed:
// its weights.
std::optional<Convolution> in_blocks(const Convolution& of, bool is_packed);

// Computes such a convolution. A block stays in a core's cache while its rows are gathered, multiplied and written.
// own: packs the weights, unless null; otherwise each call packs them. Returns false and does nothing if they aren't
// packed yet.
bool convolve_in_blocks(const Convolution& of, PackedWeights* own, const at::Tensor& result);

}  // namespace fourfold::graph
