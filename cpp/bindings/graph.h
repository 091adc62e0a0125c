// A compiled graph, forward or backward: a Python function or, where it is programs alone, these in their order.
#pragma once

#include <Python.h>

#include <ATen/core/ivalue.h>

#include <memory>
#include <vector>

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

using Values = std::vector<c10::IValue>;

struct GraphStep {
  NamedProgram program;
  std::vector<size_t> inputs;  // places among the values: first the graph's inputs, then what the steps give
};

struct CompiledGraph {
  Held function;  // takes a list of the inputs, gives a sequence of the outputs
  bool is_straight;
  std::vector<GraphStep> steps;
  std::vector<std::unique_ptr<Held>> programs;  // what the steps belong to
  std::vector<int64_t> outputs;                 // places, or -1 for None

  // Of tensors, numbers, and nothing where an output is None. With or without the GIL. Throws what Python raises.
  Values run(Values inputs) const;

 private:
  Values run_steps(const Values& inputs) const;
  Values run_function(Values inputs) const;
};

// Of an object of the type Graph; throws TypeError for others.
std::shared_ptr<const CompiledGraph> graph_of(PyObject* object);

}  // namespace fourfold::bindings
