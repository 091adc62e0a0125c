// aten::reflection_pad1d and replication_pad1d, of which torch computes each element's place.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include "packed_weights.h"

namespace fourfold::graph {

// Substitutes (operator_step.h): lines are copied whole, and their ends element by element.
bool pad_by_reflection(torch::jit::Stack& stack, PackedWeights* own, const at::Tensor* into);
bool pad_by_replication(torch::jit::Stack& stack, PackedWeights* own, const at::Tensor* into);

}  // namespace fourfold::graph
