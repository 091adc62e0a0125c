// What a loaded model has.
#pragma once

#include <fourfold/model.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "reader.h"
#include "signature.h"

namespace fourfold {

struct Model::Implementation {
  std::string graph_text;
  std::string structure;
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  std::vector<model::Weight> weights;  // that steps may pack
  const std::shared_ptr<std::atomic<bool>> are_own = std::make_shared<std::atomic<bool>>(true);  // nobody has taken a tensor
  std::optional<model::Signature> signature;
  std::shared_ptr<const graph::CompiledGraph> graph;
  // Each is an index of the graph's outputs, or (-1, a constant).
  std::vector<std::pair<int64_t, c10::IValue>> results;
  // Of a stream: an argument, and the result that it takes in the next call; -1 for one that is changed in place.
  std::vector<std::pair<size_t, int64_t>> state;

  bool is_state(size_t argument) const {
    return std::any_of(state.begin(), state.end(), [argument](const auto& each) { return each.first == argument; });
  }
};

}  // namespace fourfold
