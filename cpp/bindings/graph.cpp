#include "graph.h"

#include <ATen/autocast_mode.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include "values.h"

namespace fourfold::bindings {

Held::Held(PyObject* object) : object_(object) { Py_INCREF(object_); }

// Once Python is over, nothing is left to drop.
Held::~Held() {
  if (!Py_IsInitialized()) return;
  const pybind11::gil_scoped_acquire held;
  Py_DECREF(object_);
}

namespace {

// Graph(function, steps, outputs): steps of (Program, places of its inputs), or None where the function has to run.
struct Graph {
  PyObject_HEAD
  std::shared_ptr<const CompiledGraph>* graph;
};

PyTypeObject* graph_type = nullptr;

int init(PyObject* made, PyObject* given, PyObject*) {
  HANDLE_TH_ERRORS
  PyObject *function = nullptr, *steps = nullptr, *outputs = nullptr;
  if (!PyArg_ParseTuple(given, "OOO", &function, &steps, &outputs)) return -1;
  std::shared_ptr<CompiledGraph> graph(new CompiledGraph{Held(function), steps != Py_None, {}, {}, {}});
  if (graph->is_straight) {
    for (const auto step : pybind11::handle(steps).cast<pybind11::list>()) {
      const auto pair = step.cast<pybind11::tuple>();
      graph->programs.push_back(std::make_unique<Held>(pair[0].ptr()));
      graph->steps.push_back({program_of(pair[0].ptr()), pair[1].cast<std::vector<size_t>>()});
    }
    graph->outputs = pybind11::handle(outputs).cast<std::vector<int64_t>>();
  }
  reinterpret_cast<Graph*>(made)->graph = new std::shared_ptr<const CompiledGraph>(std::move(graph));
  return 0;
  END_HANDLE_TH_ERRORS_RET(-1)
}

void dealloc(PyObject* made) {
  PyTypeObject* type = Py_TYPE(made);
  delete reinterpret_cast<Graph*>(made)->graph;
  type->tp_free(made);
  Py_DECREF(type);
}

PyType_Slot slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(PyType_GenericNew)},
    {Py_tp_init, reinterpret_cast<void*>(init)},
    {Py_tp_dealloc, reinterpret_cast<void*>(dealloc)},
    {Py_tp_doc, const_cast<char*>("A compiled graph: a function, and its programs where it is nothing else.")},
    {0, nullptr}};
PyType_Spec spec = {"fourfold.Graph", sizeof(Graph), 0, Py_TPFLAGS_DEFAULT, slots};

}  // namespace

PyObject* make_graph_type() {
  PyObject* type = PyType_FromSpec(&spec);
  graph_type = reinterpret_cast<PyTypeObject*>(type);
  return type;
}

std::shared_ptr<const CompiledGraph> graph_of(PyObject* object) {
  TORCH_CHECK_TYPE(Py_TYPE(object) == graph_type, "expected a Graph, but got ", Py_TYPE(object)->tp_name);
  return *reinterpret_cast<Graph*>(object)->graph;
}

// What a program refuses, the function may still do by torch's operators.
Values CompiledGraph::run(Values inputs) const {
  if (!is_straight) return run_function(std::move(inputs));
  try {
    return run_steps(inputs);
  } catch (const c10::Error&) {
    return run_function(std::move(inputs));
  }
}

Values CompiledGraph::run_steps(const Values& inputs) const {
  Values made;
  size_t count = inputs.size();
  for (const GraphStep& step : steps) count += static_cast<size_t>(fourfold_program_outputs(step.program.program));
  made.reserve(count - inputs.size());  // the places of values stay where they are
  const auto at = [&](size_t place) { return place < inputs.size() ? &inputs[place] : &made[place - inputs.size()]; };
  std::vector<const c10::IValue*> read;
  std::vector<at::Tensor> written;
  for (const GraphStep& step : steps) {
    read.clear();
    written.clear();
    for (const size_t place : step.inputs) read.push_back(at(place));
    run_program(step.program, read, written);
    for (at::Tensor& tensor : written) made.emplace_back(std::move(tensor));
  }
  Values results;
  results.reserve(outputs.size());
  for (const int64_t place : outputs) results.push_back(place < 0 ? c10::IValue() : *at(static_cast<size_t>(place)));
  return results;
}

Values CompiledGraph::run_function(Values inputs) const {
  const pybind11::gil_scoped_acquire held;
  const at::NoGradGuard no_grad;
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  pybind11::list given;
  for (c10::IValue& input : inputs) given.append(pybind11::reinterpret_steal<pybind11::object>(object_of(input)));
  inputs.clear();
  pybind11::object results = pybind11::reinterpret_borrow<pybind11::object>(function.get())(given);
  Values values;
  for (const auto result : results) values.push_back(value_of(result.ptr()));
  return values;
}

}  // namespace fourfold::bindings
