// A compiled graph: a plan, the programs and torch operators to call in order, or a function where a graph needs Python. It
// knows nothing of Python, so that C++ programs run it too; what Python does comes as functions.
#pragma once

#include <ATen/core/ivalue.h>

#include <functional>
#include <memory>
#include <variant>
#include <vector>

#include "loop_step.h"
#include "number_step.h"
#include "operator_step.h"
#include "program.h"
#include "values.h"

namespace fourfold::model {

// An output of a program, and the tensor that is to have its value: an input of the graph, or a new part of a concatenation.
struct Update {
  size_t output;
  size_t value;
  bool is_new;
};

// Steps read values by index: the graph's inputs come first, then the results of the steps, in order.
struct ProgramStep {
  NamedProgram program;             // none: the operators run
  std::shared_ptr<const void> held;  // what the program belongs to
  // Appends the results by torch's operators; error: why the program doesn't run, null where there is none.
  std::function<void(const c10::Error* error, const Values& inputs, Values& values)> by_operators;
  std::vector<size_t> inputs;
  std::vector<Update> updates;

  void run(Values& values) const;

 private:
  std::vector<Target> targets(const Values& values) const;
  void run_program_or_operators(Values& values) const;
};

// One tensor of the list that an operator returned.
struct ItemStep {
  size_t list;
  size_t item;

  void run(Values& values) const;
};

// A tensor that belongs to the graph, or a number.
struct ConstantStep {
  c10::IValue value;

  void run(Values& values) const { values.push_back(value); }
};

// Memory for a concatenation, and then each of its parts, views of it.
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

// A graph within a graph, such as that of a whole sequence.
struct CallStep {
  std::shared_ptr<const CompiledGraph> graph;
  std::vector<size_t> inputs;

  void run(Values& values) const;
};

struct GraphStep {
  std::variant<ProgramStep, OperatorStep, ItemStep, ConstantStep, NumberStep, ConcatenationStep, LoopStep, CallStep> call;
  std::vector<size_t> last;  // the values whose last use this is
};

// The memory layout that an input must have: its dimensions, from the outermost in.
struct InputLayout {
  size_t index;
  std::vector<int64_t> order;

  at::Tensor of(const at::Tensor& tensor) const;
};

struct CompiledGraph {
  std::function<Values(Values)> function;  // takes the inputs, gives the outputs; empty where there is a plan
  std::vector<GraphStep> steps;
  std::vector<int64_t> outputs;  // indices of values, or -1 for None
  std::vector<InputLayout> layouts;

  // Values are tensors, numbers, or nothing for an output of None. Throws what torch's operators throw. With `records`, these
  // are called as Python calls them under no_grad, so that views and in-place changes are recorded.
  Values run(Values inputs, bool records = false) const;
  bool has_plan() const { return !function; }
  // All values of the plan, which no layouts belong to; firsts: of each step, where its results begin.
  Values record(Values inputs, std::vector<size_t>& firsts) const;
  // The outputs among a plan's values.
  Values results_of(const Values& values) const;

 private:
  Values run_plan(Values values, bool records) const;
  void run_step(const GraphStep& step, Values& values, bool records) const;
};

}  // namespace fourfold::model
