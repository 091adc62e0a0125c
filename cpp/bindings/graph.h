// A compiled graph, forward or backward: a plan, the programs and torch operators to call in order, or a Python function where
// the graph needs Python.
#pragma once

#include <Python.h>

#include <ATen/core/ivalue.h>

#include <memory>
#include <variant>
#include <vector>

#include "loop_step.h"
#include "number_step.h"
#include "operator_step.h"
#include "program.h"

namespace fourfold::bindings {

// A reference that may be dropped by any thread.
class Held {
 public:
  explicit Held(PyObject* object);  // takes a reference of its own
  ~Held();
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;

  PyObject* get() const { return object_; }

 private:
  PyObject* object_;
};

// An output of a program, and the tensor that is to have its value: an input of the graph, or a new part of a concatenation.
struct Update {
  size_t output;
  size_t value;
  bool is_new;
};

// Steps read values by index: the graph's inputs come first, then the results of the steps, in order.
struct ProgramStep {
  std::shared_ptr<Held> held;  // whose program it is
  NamedProgram program;
  std::shared_ptr<Held> eagerly;  // called with the error and the inputs if the program rejects them
  std::vector<size_t> inputs;
  std::vector<Update> updates;

  void run(Values& values) const;

 private:
  std::vector<Target> targets(const Values& values) const;
  void run_eagerly(const c10::Error& error, Values& values) const;
};

// One tensor of the list that an operator returned.
struct ItemStep {
  size_t list;
  size_t item;

  void run(Values& values) const;
};

// A tensor that belongs to the graph.
struct ConstantStep {
  at::Tensor value;

  void run(Values& values) const { values.emplace_back(value); }
};

// Memory for a concatenation, and then each of its parts, views of it.
struct ConcatenationStep {
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
  at::ScalarType dtype;
  at::Device device;
  int64_t dim;
  std::vector<int64_t> lengths;  // of the parts, along the dimension

  void run(Values& values) const;
};

struct GraphStep {
  std::variant<ProgramStep, OperatorStep, ItemStep, ConstantStep, NumberStep, ConcatenationStep, LoopStep> call;
  std::vector<size_t> last;  // the values whose last use this is
};

// The memory layout that an input must have: its dimensions, from the outermost in.
struct InputLayout {
  size_t index;
  std::vector<int64_t> order;

  at::Tensor of(const at::Tensor& tensor) const;
};

struct CompiledGraph {
  Held function;  // takes a list of the inputs, gives a sequence of the outputs
  bool has_plan;
  std::vector<GraphStep> steps;
  std::vector<int64_t> outputs;  // indices of values, or -1 for None
  std::vector<InputLayout> layouts;

  // Values are tensors, numbers, or nothing for an output of None. With or without the GIL. Throws what Python raises, and what
  // torch's operators throw. With `records`, torch's operators are called as Python calls them under no_grad, so that views and
  // in-place changes are recorded.
  Values run(Values inputs, bool records = false) const;
  // All values of the plan, which no layouts belong to; firsts: of each step, where its results begin.
  Values record(Values inputs, std::vector<size_t>& firsts) const;
  // The outputs among a plan's values.
  Values results_of(const Values& values) const;

 private:
  Values run_plan(Values values, bool records) const;
  void run_step(const GraphStep& step, Values& values, bool records) const;
  Values run_function(Values inputs) const;
};

// Of an object of the type Graph; throws TypeError for others.
std::shared_ptr<const CompiledGraph> graph_of(PyObject* object);

}  // namespace fourfold::bindings
