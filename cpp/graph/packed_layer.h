// Recurrent layers in a loaded model, whose weights are packed once: each call would pack them for a sequence.
#pragma once

#include <ATen/core/stack.h>

#include <optional>
#include <string>

#include "operator_step.h"

namespace fourfold::graph {

// Where a layer's operator has its weights and biases, and their packed copy.
struct LayerArguments {
  const char* prepack;  // the operator that packs them
  size_t first, count, prepacked;
};
// Of an operator by its name, if it is a recurrent layer.
std::optional<LayerArguments> layer_arguments_of(const std::string& name);

// For such an operator: it makes the input contiguous and adds the packed weights. Null for others.
LayOut lay_out_of_layer(const std::string& name);

}  // namespace fourfold::graph
