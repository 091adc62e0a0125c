// A compiled graph, forward or backward: a Python function or, where all that it does are programs and torch's operators,
// these in their order.
#pragma once

#include <Python.h>

#include <ATen/core/ivalue.h>

#include <memory>
#include <variant>
#include <vector>

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

// Steps read values by their places: first the graph's inputs, then what the steps give, in their order.
struct ProgramStep {
  std::shared_ptr<Held> held;  // whose program it is
  NamedProgram program;
  std::shared_ptr<Held> eagerly;  // called with the error and the inputs where the program refuses them
  std::vector<size_t> inputs;

  void run(Values& values) const;

 private:
  void run_eagerly(const c10::Error& error, Values& values) const;
};

// One of the tensors that an operator gives in a list.
struct ItemStep {
  size_t list;
  size_t item;

  void run(Values& values) const;
};

struct GraphStep {
  std::variant<ProgramStep, OperatorStep, ItemStep> call;
  std::vector<size_t> last;  // the values that nobody reads later
};

// How an input has to lie in memory: its dimensions, from the outermost in.
struct InputLayout {
  size_t place;
  std::vector<int64_t> order;

  at::Tensor of(const at::Tensor& tensor) const;
};

struct CompiledGraph {
  Held function;  // takes a list of the inputs, gives a sequence of the outputs
  bool is_straight;
  std::vector<GraphStep> steps;
  std::vector<int64_t> outputs;  // places, or -1 for None
  std::vector<InputLayout> layouts;

  // Of tensors, numbers, and nothing where an output is None. With or without the GIL. Throws what Python raises, and for
  // steps what torch's operators throw. Where they have views and changes in place to record, torch's operators are called
  // as Python does without gradients.
  Values run(Values inputs, bool records = false) const;

 private:
  Values run_steps(Values values, bool records) const;
  Values run_function(Values inputs) const;
};

// Of an object of the type Graph; throws TypeError for others.
std::shared_ptr<const CompiledGraph> graph_of(PyObject* object);

}  // namespace fourfold::bindings
