// A loop over a sequence as a step of a compiled graph: the body, a graph, runs once for each step, without Python.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "values.h"

namespace fourfold::graph {

struct CompiledGraph;

// Why a loop can't run in one of the ways; empty if it can.
using Obstacle = std::string;

// The tensors of a call.
struct LoopCall {
  int64_t steps;
  Values states;  // initial ones, of those that the body reads
  std::vector<at::Tensor> series;
  Values invariants;
  std::vector<at::Tensor> rows;  // the results that are kept for all steps
};

// How the steps after the first one would run.
struct LoopPlan {
  Obstacle nest;
  std::string layout;  // that the nest is compiled for
  Obstacle stages;
  std::vector<std::pair<int64_t, std::string>> stage_texts;  // each with its step of the body, or -1; programs have none
};

struct LoopStep {
  // Inputs: the states, one element of each series, the invariants. Results: the new states, then per-step results.
  std::shared_ptr<const CompiledGraph> body;
  std::vector<size_t> feeds;  // for each state that the body reads, the index of the new state that replaces it
  std::vector<bool> trails;   // for each new state, whether the result has it for all steps, including the initial one
  size_t series;
  bool reverse;
  std::vector<size_t> inputs;  // the number of steps, initial states, series, invariants

  // Appends, for each state, its last value or all values (steps + 1, ...), then the per-step results (steps, ...).
  void run(Values& values) const;
  // Plans a call without computing its steps. given: the inputs. recorded, firsts: as of CompiledGraph::record() for
  // the first step, None where a size depends on data; only the tensors' layouts matter. Both are unused if the body has
  // no plan.
  LoopPlan plan(const Values& given, Values recorded, const std::vector<size_t>& firsts) const;

 private:
  LoopCall call_of(const Values& given) const;
  // Runs all steps after the first one at once, if possible. `results` are those of the first step, and become those of
  // the last one.
  bool run_at_once(const LoopCall& call, const Obstacle& no_stages, Values recorded, const std::vector<size_t>& firsts,
                   Values& results) const;
  Obstacle obstacle_to_stages(const LoopCall& call) const;
  // To a nest and to stages.
  Obstacle obstacle_to_plan() const;
};

}  // namespace fourfold::graph
