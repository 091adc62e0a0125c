// bmm of small matrices with few rows, as of linear layers in groups: preparing a call takes MKL longer than computing.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include "packed_weights.h"

namespace fourfold::graph {

// A Substitute (operator_step.h).
bool multiply_small_matrices(torch::jit::Stack& stack, PackedWeights* own, const at::Tensor* into);

}  // namespace fourfold::graph
