// A compiled graph: a plan (the programs and torch operators to call, in order), or a function for graphs that need
// Python. It doesn't depend on Python, so that C++ programs can run it too; Python passes its parts as std::functions.
#pragma once

#include <ATen/core/ivalue.h>

#include <atomic>
#include <functional>
#include <memory>
#include <variant>
#include <vector>

#include "loop_step.h"
#include "number_step.h"
#include "operator_step.h"
#include "program.h"
#include "steady.h"
#include "values.h"

namespace fourfold::graph {

// An output of a program that is written into another value: an input of the graph or, with is_new, a part of a new
// concatenation.
struct Update {
  size_t output;
  size_t value;
  bool is_new;
};

// Steps read values by index: first the graph's inputs, then the results of the steps, in order.
struct ProgramStep {
  NamedProgram program;             // null: torch's operators run instead
  std::shared_ptr<const void> held;  // keeps the program alive
  // Appends the results, computed by torch's operators. error: why the program can't run; null if there is no program.
  std::function<void(const c10::Error* error, const Values& inputs, Values& values)> by_operators;
  std::vector<size_t> inputs;
  std::vector<Update> updates;

  void run(Values& values) const;

 private:
  std::vector<Target> targets(const Values& values) const;
  void run_program_or_operators(Values& values) const;
};

// One tensor of a list that an operator returned.
struct ItemStep {
  size_t list;
  size_t item;

  void run(Values& values) const;
};

// A tensor that the graph owns, or a number.
struct ConstantStep {
  c10::IValue value;

  void run(Values& values) const { values.push_back(value); }
};

// Allocates a concatenation. Appends it, then its parts, which are views of it.
struct ConcatenationStep {
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
  at::ScalarType dtype;
  int64_t dim;
  std::vector<int64_t> lengths;  // of the parts, along the dimension
  at::Device device = at::kCPU;

  void run(Values& values) const;
};

struct CompiledGraph;

// Calls a graph within a graph, such as one over a whole sequence.
struct CallStep {
  std::shared_ptr<const CompiledGraph> graph;
  std::vector<size_t> inputs;

  void run(Values& values) const;
};

struct GraphStep {
  std::variant<ProgramStep, OperatorStep, ItemStep, ConstantStep, NumberStep, ConcatenationStep, LoopStep, CallStep> call;
  std::vector<size_t> last;  // the values whose last use this is
};

// The memory layout that an input must have: its dimensions, outermost first. If it needn't be dense, it may be broadcast
// along some dimensions, and have gaps.
struct InputLayout {
  size_t index;
  std::vector<int64_t> order;
  bool is_dense = true;

  at::Tensor of(const at::Tensor& tensor) const;
};

struct CompiledGraph {
  std::function<Values(Values)> function;  // from inputs to outputs; empty if there is a plan
  std::vector<GraphStep> steps;
  std::vector<int64_t> outputs;  // indices of values, or -1 for None
  std::vector<InputLayout> layouts;
  // Which inputs are the same tensors in every call, with the same elements while `are_unchanged`; or none.
  std::vector<bool> constants;
  std::shared_ptr<const std::atomic<bool>> are_unchanged;

  // Values are tensors, numbers, or None outputs. Passes on exceptions of torch's operators. With `records`, operators
  // are called as in Python under no_grad: autograd records views and in-place changes.
  Values run(Values inputs, bool records = false) const;
  bool has_plan() const { return !function; }
  // Runs a plan without input layouts and returns all its values. firsts: for each step, the index of its first result.
  Values record(Values inputs, std::vector<size_t>& firsts) const;
  // The outputs among a plan's values.
  Values results_of(const Values& values) const;
  // Appends the results of one step.
  void run_step(const GraphStep& step, Values& values, bool records) const;

 private:
  Values run_plan(Values values, bool records) const;

  std::shared_ptr<SteadyCalls> steady_ = std::make_shared<SteadyCalls>();
};

}  // namespace fourfold::graph
