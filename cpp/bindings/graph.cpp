#include "graph.h"

#include <ATen/autocast_mode.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include "held.h"
#include "steps.h"
#include "values.h"
#include "vectorcall_type.h"

namespace fourfold::bindings {

Held::Held(PyObject* object) : object_(object) { Py_INCREF(object_); }

// After the interpreter has shut down the reference can't be released.
Held::~Held() {
  if (!Py_IsInitialized()) return;
  const pybind11::gil_scoped_acquire held;
  Py_DECREF(object_);
}

namespace {

// Graph(function, steps, outputs, layouts). steps: None if the function has to run, otherwise the plan, a list of
//   ("program", (Program, its fallback, updates), indices of its inputs)
//     updates: (output, index of the tensor to write it into, whether that is new)
//   ("operator", (name, overload), arguments)
//   ("item", index of a list, index in it)
//   ("constant", tensor, None)
//   ("number", name of an operation, operands: ("value", index) or ("number", number))
//   ("concatenation", (sizes, strides, dtype, device), (dimension, lengths of the parts))
//   ("graph", (the Subgraph, its Graph), indices of its inputs)
//   ("loop", (the Loop, the Graph of its body, feeds, trails, number of series, reverse), indices of its inputs)
// each with a fourth element, the indices of the values whose last use it is. layouts: (index, dimensions, outermost
// first, whether it must be dense) of each input that needs a certain memory layout. A Graph is called like the function.
struct Graph {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  std::shared_ptr<const CompiledGraph>* graph;
  std::shared_ptr<Held>* function;
};

PyTypeObject* graph_type = nullptr;

// Can be called with or without the GIL.
Values run_function(PyObject* function, Values inputs) {
  const pybind11::gil_scoped_acquire held;
  const at::NoGradGuard no_grad;
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  pybind11::list given;
  for (c10::IValue& input : inputs) given.append(pybind11::reinterpret_steal<pybind11::object>(object_of(input)));
  inputs.clear();
  pybind11::object results = pybind11::reinterpret_borrow<pybind11::object>(function)(given);
  Values values;
  for (const auto result : results) values.push_back(value_of(result.ptr()));
  return values;
}

PyObject* call_graph(PyObject* callable, PyObject* const* arguments, size_t flags, PyObject* names) {
  HANDLE_TH_ERRORS
  const CompiledGraph& graph = **reinterpret_cast<Graph*>(callable)->graph;
  const Held& function = **reinterpret_cast<Graph*>(callable)->function;
  const bool is_one_list = names == nullptr && PyVectorcall_NARGS(flags) == 1 && PyList_Check(arguments[0]);
  TORCH_CHECK_TYPE(is_one_list, "expected a list of the graph's inputs");
  PyObject* const given = arguments[0];
  const Py_ssize_t count = PyList_GET_SIZE(given);
  Values values;
  values.reserve(static_cast<size_t>(count));
  for (Py_ssize_t k = 0; k < count; ++k) {
    PyObject* const input = PyList_GET_ITEM(given, k);
    if (!graph.has_plan() || !is_value(input)) return PyObject_CallOneArg(function.get(), given);
    values.push_back(value_of(input));
  }
  if (PyList_SetSlice(given, 0, count, nullptr) != 0) return nullptr;
  {
    const pybind11::gil_scoped_release released;
    const at::NoGradGuard no_grad;
    values = graph.run(std::move(values), /*records=*/true);
  }
  return tuple_of(values);
  END_HANDLE_TH_ERRORS
}

int init_graph(PyObject* made, PyObject* given, PyObject*) {
  HANDLE_TH_ERRORS
  Graph& self = *reinterpret_cast<Graph*>(made);
  TORCH_CHECK_TYPE(self.graph == nullptr, "graph: expected to be made once");
  PyObject *function = nullptr, *steps = nullptr, *outputs = nullptr, *layouts = nullptr;
  if (!PyArg_ParseTuple(given, "OOOO", &function, &steps, &outputs, &layouts)) return -1;
  const auto graph = std::make_shared<CompiledGraph>();
  const auto held = std::make_shared<Held>(function);
  using Layouts = std::vector<std::tuple<size_t, std::vector<int64_t>, bool>>;
  for (auto& [index, order, is_dense] : pybind11::handle(layouts).cast<Layouts>()) {
    graph->layouts.push_back({index, std::move(order), is_dense});
  }
  if (steps == Py_None) {
    graph->function = [held](Values inputs) { return run_function(held->get(), std::move(inputs)); };
  } else {
    for (const auto step : pybind11::handle(steps).cast<pybind11::list>()) graph->steps.push_back(step_of(step));
    graph->outputs = pybind11::handle(outputs).cast<std::vector<int64_t>>();
  }
  self.graph = new std::shared_ptr<const CompiledGraph>(graph);
  self.function = new std::shared_ptr<Held>(held);
  self.vectorcall = call_graph;
  return 0;
  END_HANDLE_TH_ERRORS_RET(-1)
}

void dealloc_graph(PyObject* made) {
  PyTypeObject* type = Py_TYPE(made);
  delete reinterpret_cast<Graph*>(made)->graph;
  delete reinterpret_cast<Graph*>(made)->function;
  type->tp_free(made);
  Py_DECREF(type);
}

}  // namespace

PyObject* make_graph_type() {
  PyObject* type = make_vectorcall_type<Graph>(
      "fourfold.Graph", "A compiled graph: a function, and its plan where it needs no Python.", init_graph,
      dealloc_graph);
  graph_type = reinterpret_cast<PyTypeObject*>(type);
  // AOTAutograd checks this attribute and then passes its arguments in a list, which the callee clears.
  if (type != nullptr && PyObject_SetAttrString(type, "_boxed_call", Py_True) != 0) return nullptr;
  return type;
}

std::shared_ptr<const CompiledGraph> graph_of(PyObject* object) {
  TORCH_CHECK_TYPE(Py_TYPE(object) == graph_type, "expected a Graph, but got ", Py_TYPE(object)->tp_name);
  const Graph& graph = *reinterpret_cast<Graph*>(object);
  TORCH_CHECK_TYPE(graph.graph != nullptr, "expected a Graph that was made of a function");
  return *graph.graph;
}

}  // namespace fourfold::bindings
