#include "graph.h"

#include <ATen/EmptyTensor.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include "memory.h"
#include "values.h"
#include "vectorcall_type.h"

namespace fourfold::bindings {

Held::Held(PyObject* object) : object_(object) { Py_INCREF(object_); }

// After the interpreter has shut down there is nothing to release.
Held::~Held() {
  if (!Py_IsInitialized()) return;
  const pybind11::gil_scoped_acquire held;
  Py_DECREF(object_);
}

namespace {

// Graph(function, steps, outputs, layouts): steps are None if the function has to run, or the plan, a list of
//   ("program", (Program, its fallback, updates: an output, the index of the tensor that is to have its value, and whether that
//     is new), indices of its inputs)
//   ("operator", (name, overload), arguments)
//   ("item", index of a list, which)
//   ("constant", tensor, None)
//   ("number", name of an operation, operands: ("value", index) or ("number", number))
//   ("concatenation", (sizes, strides, dtype, device), (dimension, lengths of the parts))
//   ("loop", (the Loop, the Graph of its body, feeds, trails, number of series, reverse), indices of its inputs)
// each with the indices of the values whose last use it is. layouts: index and dimensions, from the outermost in, of each input
// that needs a certain memory layout. A Graph is called like the function.
struct Graph {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  std::shared_ptr<const CompiledGraph>* graph;
};

PyTypeObject* graph_type = nullptr;

GraphStep step_of(pybind11::handle given) {
  const auto step = given.cast<pybind11::tuple>();
  const auto what = step[0].cast<std::string>();
  auto last = step[3].cast<std::vector<size_t>>();
  if (what == "program") {
    const auto given = step[1].cast<pybind11::tuple>();
    const auto held = [](pybind11::handle object) { return std::make_shared<Held>(object.ptr()); };
    std::vector<Update> updates;
    for (const auto& [output, value, is_new] : given[2].cast<std::vector<std::tuple<size_t, size_t, bool>>>()) {
      updates.push_back({output, value, is_new});
    }
    return {ProgramStep{held(given[0]), program_of(given[0].ptr()), held(given[1]), step[2].cast<std::vector<size_t>>(),
                        std::move(updates)},
            std::move(last)};
  }
  if (what == "concatenation") {
    auto [sizes, strides, dtype, device] =
        step[1].cast<std::tuple<std::vector<int64_t>, std::vector<int64_t>, at::ScalarType, at::Device>>();
    auto [dim, lengths] = step[2].cast<std::pair<int64_t, std::vector<int64_t>>>();
    return {ConcatenationStep{std::move(sizes), std::move(strides), dtype, device, dim, std::move(lengths)}, std::move(last)};
  }
  if (what == "loop") {
    const auto given = step[1].cast<pybind11::tuple>();
    return {LoopStep{std::make_shared<Held>(given[0].ptr()), graph_of(given[1].ptr()), given[2].cast<std::vector<size_t>>(),
                     given[3].cast<std::vector<bool>>(), given[4].cast<size_t>(), given[5].cast<bool>(),
                     step[2].cast<std::vector<size_t>>()},
            std::move(last)};
  }
  if (what == "constant") return {ConstantStep{THPVariable_Unpack(step[1].ptr())}, std::move(last)};
  if (what == "number") {
    NumberStep made{step[1].cast<std::string>(), {}};
    for (const auto given : pybind11::handle(step[2]).cast<pybind11::list>()) {
      const auto operand = given.cast<pybind11::tuple>();
      const bool is_value = operand[0].cast<std::string>() == "value";
      made.operands.emplace_back(is_value ? operand[1].cast<int64_t>() : -1,
                                 is_value ? c10::IValue() : value_of(operand[1].ptr()));
    }
    return {std::move(made), std::move(last)};
  }
  if (what == "item") return {ItemStep{step[1].cast<size_t>(), step[2].cast<size_t>()}, std::move(last)};
  const auto [name, overload] = step[1].cast<std::pair<std::string, std::string>>();
  return {make_operator_step(name.c_str(), overload.c_str(), step[2].ptr()), std::move(last)};
}

PyObject* call_graph(PyObject* callable, PyObject* const* arguments, size_t flags, PyObject* names) {
  HANDLE_TH_ERRORS
  const CompiledGraph& graph = **reinterpret_cast<Graph*>(callable)->graph;
  const bool is_one_list = names == nullptr && PyVectorcall_NARGS(flags) == 1 && PyList_Check(arguments[0]);
  TORCH_CHECK_TYPE(is_one_list, "expected a list of the graph's inputs");
  PyObject* const given = arguments[0];
  const Py_ssize_t count = PyList_GET_SIZE(given);
  Values values;
  values.reserve(static_cast<size_t>(count));
  for (Py_ssize_t k = 0; k < count; ++k) {
    PyObject* const input = PyList_GET_ITEM(given, k);
    if (!graph.has_plan || !is_value(input)) return PyObject_CallOneArg(graph.function.get(), given);
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
  PyObject *function = nullptr, *steps = nullptr, *outputs = nullptr, *layouts = nullptr;
  if (!PyArg_ParseTuple(given, "OOOO", &function, &steps, &outputs, &layouts)) return -1;
  std::shared_ptr<CompiledGraph> graph(new CompiledGraph{Held(function), steps != Py_None, {}, {}, {}});
  for (auto& [index, order] : pybind11::handle(layouts).cast<std::vector<std::pair<size_t, std::vector<int64_t>>>>()) {
    graph->layouts.push_back({index, std::move(order)});
  }
  if (graph->has_plan) {
    for (const auto step : pybind11::handle(steps).cast<pybind11::list>()) graph->steps.push_back(step_of(step));
    graph->outputs = pybind11::handle(outputs).cast<std::vector<int64_t>>();
  }
  reinterpret_cast<Graph*>(made)->vectorcall = call_graph;
  reinterpret_cast<Graph*>(made)->graph = new std::shared_ptr<const CompiledGraph>(std::move(graph));
  return 0;
  END_HANDLE_TH_ERRORS_RET(-1)
}

void dealloc_graph(PyObject* made) {
  PyTypeObject* type = Py_TYPE(made);
  delete reinterpret_cast<Graph*>(made)->graph;
  type->tp_free(made);
  Py_DECREF(type);
}

}  // namespace

PyObject* make_graph_type() {
  PyObject* type = make_vectorcall_type<Graph>(
      "fourfold.Graph", "A compiled graph: a function, and its plan where it needs no Python.", init_graph,
      dealloc_graph);
  graph_type = reinterpret_cast<PyTypeObject*>(type);
  // What AOTAutograd asks for before it hands over its arguments in a list, which the callee empties.
  if (type != nullptr && PyObject_SetAttrString(type, "_boxed_call", Py_True) != 0) return nullptr;
  return type;
}

std::shared_ptr<const CompiledGraph> graph_of(PyObject* object) {
  TORCH_CHECK_TYPE(Py_TYPE(object) == graph_type, "expected a Graph, but got ", Py_TYPE(object)->tp_name);
  const Graph& graph = *reinterpret_cast<Graph*>(object);
  TORCH_CHECK_TYPE(graph.graph != nullptr, "expected a Graph that was made of a function");
  return *graph.graph;
}

void ProgramStep::run(Values& values) const {
  std::vector<const c10::IValue*> read;
  std::vector<at::Tensor> written;
  read.reserve(inputs.size());
  for (const size_t index : inputs) read.push_back(&values[index]);
  const size_t first = values.size();
  try {
    run_program(program, read, written, targets(values));
    for (at::Tensor& tensor : written) values.emplace_back(std::move(tensor));
  } catch (const c10::Error& error) {
    run_eagerly(error, values);
  }
  if (updates.empty()) return;
  const at::NoGradGuard no_grad;
  for (const Update& update : updates) {
    const at::Tensor& result = values[first + update.output].toTensor();
    const at::Tensor& updated = values[update.value].toTensor();
    if (!result.is_same(updated)) updated.copy_(result);
  }
}

std::vector<Target> ProgramStep::targets(const Values& values) const {
  std::vector<Target> found;
  for (const Update& update : updates) {
    if (update.output >= found.size()) found.resize(update.output + 1);
    found[update.output] = {values[update.value].toTensor(), update.is_new};
  }
  return found;
}

void ProgramStep::run_eagerly(const c10::Error& error, Values& values) const {
  const pybind11::gil_scoped_acquire held_gil;
  const pybind11::handle raised(dynamic_cast<const c10::TypeError*>(&error) != nullptr ? PyExc_TypeError : PyExc_ValueError);
  pybind11::tuple given(inputs.size() + 1);
  given[0] = raised(error.what_without_backtrace());
  for (size_t k = 0; k < inputs.size(); ++k) {
    given[k + 1] = pybind11::reinterpret_steal<pybind11::object>(object_of(values[inputs[k]]));
  }
  const pybind11::object results = pybind11::handle(eagerly->get())(*given);
  if (THPVariable_Check(results.ptr())) {
    values.push_back(value_of(results.ptr()));
  } else {
    for (const auto result : results) values.push_back(value_of(result.ptr()));
  }
}

void ItemStep::run(Values& values) const { values.emplace_back(values[list].toListRef().at(item)); }

void ConcatenationStep::run(Values& values) const {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  const at::Tensor whole = new_memory(sizes, strides, dtype, device);
  values.emplace_back(whole);
  std::vector<int64_t> own = sizes;
  int64_t begin = 0;
  for (const int64_t length : lengths) {
    own[static_cast<size_t>(dim)] = length;
    values.emplace_back(whole.as_strided(own, strides, begin * strides[static_cast<size_t>(dim)]));
    begin += length;
  }
}

at::Tensor InputLayout::of(const at::Tensor& tensor) const {
  int64_t dense = 1;
  bool lies_so = true;
  for (auto dim = order.rbegin(); dim != order.rend(); ++dim) {
    lies_so = lies_so && (tensor.size(*dim) == 1 || tensor.stride(*dim) == dense);
    dense *= tensor.size(*dim);
  }
  if (lies_so) return tensor;
  std::vector<int64_t> back(order.size());
  for (size_t k = 0; k < order.size(); ++k) back[static_cast<size_t>(order[k])] = static_cast<int64_t>(k);
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  return tensor.permute(order).contiguous().permute(back);
}

Values CompiledGraph::run(Values inputs, bool records) const {
  for (const InputLayout& layout : layouts) {
    if (inputs[layout.index].isTensor()) inputs[layout.index] = layout.of(inputs[layout.index].toTensor());
  }
  return has_plan ? run_plan(std::move(inputs), records) : run_function(std::move(inputs));
}

Values CompiledGraph::run_plan(Values values, bool records) const {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  for (const GraphStep& step : steps) {
    run_step(step, values, records);
    for (const size_t index : step.last) values[index] = {};
  }
  return results_of(values);
}

void CompiledGraph::run_step(const GraphStep& step, Values& values, bool records) const {
  if (const auto* operation = std::get_if<OperatorStep>(&step.call); operation != nullptr && !records) {
    const at::AutoDispatchBelowADInplaceOrView no_autograd;
    operation->run(values);
  } else {
    std::visit([&values](const auto& call) { call.run(values); }, step.call);
  }
}

Values CompiledGraph::record(Values values, std::vector<size_t>& firsts) const {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  for (const GraphStep& step : steps) {
    firsts.push_back(values.size());
    run_step(step, values, false);
  }
  return values;
}

Values CompiledGraph::results_of(const Values& values) const {
  Values results;
  results.reserve(outputs.size());
  for (const int64_t index : outputs) results.push_back(index < 0 ? c10::IValue() : values[static_cast<size_t>(index)]);
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
