// Steady calls: the graph is called again with inputs that lie in memory as those of earlier calls. What follows from
// layouts is then there already: sizes, views, the windows of convolutions. What steps compute for other steps lies in
// one block of memory, which the next call uses again.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "values.h"

namespace fourfold::graph {

struct CompiledGraph;
struct SteadyPlan;
class SteadyCall;

// How a graph's inputs lie: all that its steps' layouts follow from.
class InputKey {
 public:
  InputKey() = default;
  InputKey(const Values& inputs, bool records);

  // Whether these inputs lie so, and are CPU tensors without features that programs and prepared steps don't have.
  bool fits(const Values& inputs, bool records) const;

 private:
  struct Input {
    std::optional<at::ScalarType> dtype;  // of a tensor
    c10::SmallVector<int64_t, 8> layout;  // sizes, strides
    c10::IValue other;
  };

  std::vector<Input> inputs_;
  bool records_ = false;
  bool is_inference_ = false;
};

class SteadyCalls {
 public:
  SteadyCalls();
  ~SteadyCalls();

  // The results, or nothing for calls that are not steady. Threads may call at once. records: as of CompiledGraph::run().
  std::optional<Values> run(const CompiledGraph& graph, const Values& inputs, bool records);

 private:
  struct Known;

  std::shared_ptr<Known> find(const Values& inputs, bool records);
  bool is_next(const Values& inputs, bool records);
  Values plan(const CompiledGraph& graph, const Values& inputs, bool records);

  std::mutex mutex_;
  std::vector<std::shared_ptr<Known>> known_;  // the latest last
  InputKey candidate_;
  int calls_ = 0;  // of the candidate, in a row
};

}  // namespace fourfold::graph
