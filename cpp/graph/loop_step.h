// A loop over a sequence as a step of a compiled graph: the body, a graph, runs once for each step, without Python.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <functional>
#include <memory>
#include <vector>

#include "values.h"

namespace fourfold::graph {

struct CompiledGraph;

// The tensors of a running loop.
struct LoopRun {
  int64_t steps;
  const std::vector<at::Tensor>& sequences;
  const Values& values;
  const std::vector<size_t>& invariants;
  const std::vector<at::Tensor>& rows;  // the results that are kept for all steps
};

struct LoopStep {
  // Called with the inputs if they include tensor subclasses or non-strided tensors; if empty, the body runs by
  // operators.
  std::function<Values(const Values&)> by_operators;
  // Inputs: the states, one element of each series, the invariants. Results: the new states, then per-step results.
  std::shared_ptr<const CompiledGraph> body;
  std::vector<size_t> feeds;  // for each state that the body reads, the index of the new state that replaces it
  std::vector<bool> trails;   // for each new state, whether the result has it for all steps, including the initial one
  size_t series;
  bool reverse;
  std::vector<size_t> inputs;  // the number of steps, initial states, series, invariants

  // Appends, for each state, its last value or all values (steps + 1, ...), then the per-step results (steps, ...).
  void run(Values& values) const;

 private:
  // Writes one step's results into the rows of those that are kept for all steps, which the first call allocates.
  void keep_results(const Values& results, int64_t steps, int64_t step, std::vector<at::Tensor>& rows) const;
  // Runs the steps from `begin` on in one loop nest; false if the body isn't a single program, or has no nest.
  // `results` are those of the previous step, and become those of the last one.
  bool run_nest(const LoopRun& running, int64_t begin, Values& results) const;
  // Step by step, on any device.
  Values run_by_operators(const Values& given) const;
};

}  // namespace fourfold::graph
