// A loop over the steps of a sequence as a step of a compiled graph: a graph of one step runs once for each, without Python.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <functional>
#include <memory>
#include <vector>

#include "values.h"

namespace fourfold::model {

struct CompiledGraph;

// The tensors of a loop that runs.
struct LoopRun {
  int64_t steps;
  const std::vector<at::Tensor>& sequences;
  const Values& values;
  const std::vector<size_t>& invariants;
  const std::vector<at::Tensor>& rows;  // of all steps, where these are results
};

struct LoopStep {
  std::function<Values(const Values&)> by_operators;  // called with the inputs where tensors are not plain ones; empty: the body is
  // Inputs: the states that it reads, a step's element of each series, the invariants. Results: the new states, and what is kept.
  std::shared_ptr<const CompiledGraph> body;
  std::vector<size_t> feeds;  // for each state that the body reads, the new state that the next step reads there
  std::vector<bool> trails;   // for each new state, whether all of them are a result, the initial one included
  size_t series;
  bool reverse;
  std::vector<size_t> inputs;  // the number of steps, initial states, series, invariants

  // Appends each state's last value, or all of shape (steps + 1, ...), then what is kept, of shape (steps, ...).
  void run(Values& values) const;

 private:
  // Runs the steps from `begin` on in one nest, if the body is one program and there is a nest for it. The results of the step
  // before are `results`, and become those of the last one.
  bool run_nest(const LoopRun& running, int64_t begin, Values& results) const;
  // Step by step, on any device.
  Values run_by_operators(const Values& given) const;
};

}  // namespace fourfold::model
