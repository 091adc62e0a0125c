// What a steady call does.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "few_positions.h"
#include "graph.h"

namespace fourfold::graph {

struct TensorLayout {
  c10::SmallVector<int64_t, 5> sizes, strides;
  at::ScalarType dtype;
  int64_t offset;  // of the first element, in elements
};

enum class Way : uint8_t {
  as_ever,      // the step runs as in any call
  program,      // into memory that is there
  operation,    // the operator that writes into given tensors
  substitute,   // a product in another way than torch's
  convolution,  // of few positions
  relu,
};

struct Action {
  size_t step;
  Way way;
  std::vector<size_t> results;                      // values
  std::vector<std::pair<size_t, TensorLayout>> made;  // results with memory of their own in each call
  std::vector<std::pair<size_t, TensorLayout>> expected;  // of results that the operator allocates
  std::vector<size_t> last;  // values of this call alone, which nothing reads later
  std::optional<c10::OperatorHandle> operation;
};

// A value that each call finds in the graph's memory.
struct Kept {
  size_t value;
  size_t owner;  // the value whose memory it is part of
  TensorLayout layout;
};

struct SteadyPlan {
  std::vector<Action> actions;
  std::vector<size_t> firsts;                          // each step's first result
  std::vector<std::pair<size_t, c10::IValue>> constants;  // values that are the same in each call
  std::vector<Kept> kept;                              // owners before their parts
  std::vector<std::pair<size_t, size_t>> places;       // owners' values, and where they begin in the block, in bytes
  bool reads_constants = false;                        // whether values follow from the graph's constants
  size_t bytes = 0;                                    // of the block
  std::vector<bool> is_of_call;                        // for each value, whether it is another one in each call
};

// Follows a call whose values have all been kept. Null if there is nothing to gain, or if layouts may follow from
// something else than the inputs'.
std::unique_ptr<const SteadyPlan> plan_of(const CompiledGraph& graph, const Values& values, const std::vector<size_t>& firsts);

TensorLayout layout_of(const at::Tensor& tensor);
bool lies_as(const at::Tensor& tensor, const TensorLayout& layout);

}  // namespace fourfold::graph
