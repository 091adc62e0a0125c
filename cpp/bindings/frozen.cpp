// Calls of a frozen module without gradient. For a step of batch 1, the overhead of a call from Python is several times
// the kernel's time.
#include <Python.h>

#include <ATen/Functions.h>
#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/jit/frontend/tracer.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "program.h"
#include "values.h"
#include "vectorcall_type.h"

namespace fourfold::bindings {
namespace {

using at::Tensor;
using c10::DispatchKey;
using torch::jit::Stack;

// A dict's item, or null. Returns a new reference, because without a GIL another thread may remove the item.
pybind11::object item_of(PyObject* dict, PyObject* key) {
#if PY_VERSION_HEX >= 0x030d0000
  PyObject* item = nullptr;
  PyDict_GetItemRef(dict, key, &item);
  return pybind11::reinterpret_steal<pybind11::object>(item);
#else
  return pybind11::reinterpret_borrow<pybind11::object>(PyDict_GetItemWithError(dict, key));
#endif
}

// A parameter, or an absent bias, and its state when it was packed.
struct Parameter {
  pybind11::object name;
  pybind11::object object;  // kept alive, so that its address isn't reused
  const c10::TensorImpl* tensor = nullptr;  // null for an absent bias
  const void* data = nullptr;
  int64_t version = 0;

  c10::IValue value() const { return tensor == nullptr ? c10::IValue() : THPVariable_Unpack(object.ptr()); }

  bool is_in(PyObject* parameters) const {
    if (item_of(parameters, name.ptr()).ptr() != object.ptr()) return false;
    if (tensor == nullptr) return true;
    c10::TensorImpl* const now = THPVariable_Unpack(object.ptr()).unsafeGetTensorImpl();
    return now == tensor && now->data() == data && !now->is_inference() &&
           static_cast<int64_t>(now->version_counter().current_version()) == version;
  }
};

// One layer in one direction. rest: the operator's arguments after the input, the states and the parameters. Parameters
// are held only as Python objects, because torch.utils.swap_tensors rejects tensors with other references.
struct Layer {
  std::vector<Parameter> parameters;
  Stack rest;

  // The operator's arguments; the caller fills in the first ones, the input and the states.
  Stack arguments(size_t first) const {
    Stack stack;
    stack.reserve(first + parameters.size() + rest.size());
    stack.resize(first);
    for (const Parameter& parameter : parameters) stack.push_back(parameter.value());
    stack.insert(stack.end(), rest.begin(), rest.end());
    return stack;
  }
};

struct Calls {
  c10::OperatorHandle op;
  // Attributes that must be unchanged.
  std::vector<std::pair<pybind11::object, pybind11::object>> attributes;
  std::vector<Layer> layers;
  bool is_cell;
  bool batch_first;
  size_t states;
  size_t reset_at;  // index among the operator's arguments
  int64_t directions;
  int64_t input_size;
  int64_t hidden_size;
  c10::ScalarType dtype;

  int64_t count() const { return static_cast<int64_t>(layers.size()); }

  // Whether the module's __dict__ is unchanged since its weights were packed.
  bool is_as_it_was(PyObject* module) const {
    for (const auto& [name, value] : attributes) {
      if (item_of(module, name.ptr()).ptr() != value.ptr()) return false;
    }
    static PyObject* const key = PyUnicode_InternFromString("_parameters");
    const auto held = item_of(module, key);
    PyObject* const parameters = held.ptr();
    if (parameters == nullptr || !PyDict_CheckExact(parameters)) return false;
    for (const Layer& layer : layers) {
      for (const Parameter& parameter : layer.parameters) {
        if (!parameter.is_in(parameters)) return false;
      }
    }
    return true;
  }
};

// Frozen(operator, attributes, layers, is_cell, batch_first, bidirectional): see freezing.py. Called with a module's
// __dict__, input, state and reset mask, it returns the module's results, or None if Python has to handle the call: for
// gradients, tracing and modes, and for unexpected arguments, for which Python raises the error. Called with only the
// __dict__, it returns whether the weights are still those that were packed.
struct Frozen {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  Calls* calls;
};

// Whether gradients, autocast, a transform, a tracer or a mode requires a call with the original weights.
bool is_another_kind_of_call() {
  return at::GradMode::is_enabled() || at::autocast::is_autocast_enabled(at::kCPU) ||
         at::impl::torch_function_mode_enabled() || torch::jit::tracer::isTracing() ||
         c10::impl::TorchDispatchModeTLS::stack_len() > 0 ||
         c10::impl::tls_is_dispatch_key_included(DispatchKey::FuncTorchDynamicLayerFrontMode);
}

// The tensor if it is a plain CPU tensor: no subclass, wrapper, other layout or tangent. Otherwise null.
const Tensor* plain(PyObject* given, c10::ScalarType dtype) {
  static const uint64_t keys =
      c10::DispatchKeySet({DispatchKey::CPU, DispatchKey::AutogradCPU, DispatchKey::AutocastCPU,
                           DispatchKey::ADInplaceOrView})
          .raw_repr();
  if (!THPVariable_CheckExact(given)) return nullptr;
  const Tensor& tensor = THPVariable_Unpack(given);
  const bool fits = (tensor.key_set().raw_repr() & ~keys) == 0 && tensor.scalar_type() == dtype && !has_tangent(tensor);
  return fits ? &tensor : nullptr;
}

// A read-only view of a tensor's memory that autograd doesn't track.
Tensor part_of(const Tensor& tensor, c10::IntArrayRef sizes, c10::IntArrayRef strides, int64_t offset = 0) {
  c10::Storage storage = tensor.storage();
  Tensor part = at::detail::make_tensor<c10::TensorImpl>(
      c10::TensorImpl::VIEW, std::move(storage), tensor.key_set(), tensor.dtype());
  part.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, tensor.storage_offset() + offset);
  return part;
}

// Reshapes a new result of an operator, in place if possible.
Tensor reshaped(Tensor&& made, c10::IntArrayRef sizes) {
  if (made.use_count() != 1 || !made.is_contiguous()) return made.view(sizes);
  made.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  return std::move(made);
}

// One call's input with time first, and its states.
struct Given {
  bool batched;
  int64_t time;
  int64_t batch;
  Tensor input;                       // (time, batch, input_size)
  std::vector<const Tensor*> states;  // as passed by the user, or empty
  Tensor reset;                       // (time, batch), or undefined
};

bool read_input(const Calls& self, PyObject* given, Given& to) {
  const Tensor* const input = plain(given, self.dtype);
  if (input == nullptr) return false;
  const int64_t least = self.is_cell ? 1 : 2;
  const int64_t dim = input->dim();
  if ((dim != least && dim != least + 1) || input->size(dim - 1) != self.input_size) return false;
  to.batched = dim > least;
  const int64_t batch_at = self.is_cell || self.batch_first ? 0 : 1;
  const int64_t time_at = to.batched ? 1 - batch_at : 0;
  to.time = self.is_cell ? 1 : input->size(time_at);
  to.batch = to.batched ? input->size(batch_at) : 1;
  if (to.time == 0 || to.batch == 0) return false;
  if (!self.is_cell && to.batched && !self.batch_first) {
    to.input = *input;
    return true;
  }
  const int64_t time_stride = self.is_cell ? to.batch * self.input_size : input->stride(time_at);
  const int64_t batch_stride = to.batched ? input->stride(batch_at) : self.input_size;
  to.input = part_of(
      *input, {to.time, to.batch, self.input_size}, {time_stride, batch_stride, input->stride(dim - 1)});
  return true;
}

bool read_states(const Calls& self, PyObject* given, Given& to) {
  if (given == Py_None) return true;
  const bool several = self.states > 1 || self.is_cell;
  if (several && (!PyTuple_CheckExact(given) || PyTuple_GET_SIZE(given) != static_cast<Py_ssize_t>(self.states))) {
    return false;
  }
  for (size_t k = 0; k < self.states; ++k) {
    PyObject* const one = several ? PyTuple_GET_ITEM(given, static_cast<Py_ssize_t>(k)) : given;
    const Tensor* const state = plain(one, self.dtype);
    if (state == nullptr || state->dim() != (self.is_cell ? 1 : 2) + static_cast<int64_t>(to.batched)) return false;
    if (!self.is_cell && state->size(0) != self.count()) return false;
    if (to.batched && state->size(state->dim() - 2) != to.batch) return false;
    if (state->size(state->dim() - 1) != self.hidden_size) return false;
    to.states.push_back(state);
  }
  return true;
}

// Only unidirectional modules: for the reverse direction Python shifts the mask.
bool read_reset(const Calls& self, PyObject* given, Given& to) {
  if (given == Py_None) return true;
  const Tensor* const reset = plain(given, c10::ScalarType::Bool);
  if (reset == nullptr || self.is_cell || self.directions > 1 || reset->dim() != (to.batched ? 2 : 1)) return false;
  const int64_t batch_at = self.batch_first ? 0 : 1;
  const int64_t time_at = to.batched ? 1 - batch_at : 0;
  if (reset->size(time_at) != to.time || (to.batched && reset->size(batch_at) != to.batch)) return false;
  to.reset = part_of(*reset, {to.time, to.batch}, {reset->stride(time_at), to.batched ? reset->stride(batch_at) : 1});
  return true;
}

// The state of one layer in one direction: (batch, hidden_size).
Tensor state_of(const Calls& self, const Given& given, const Tensor& state, int64_t layer) {
  const int64_t last = state.dim() - 1;
  if (self.is_cell && given.batched) return state;
  const int64_t offset = self.is_cell ? 0 : layer * state.stride(0);
  const int64_t batch_stride = given.batched ? state.stride(last - 1) : self.hidden_size;
  return part_of(state, {given.batch, self.hidden_size}, {batch_stride, state.stride(last)}, offset);
}

// The last layer's output, and the final states.
std::vector<Tensor> run(const Calls& self, Given& given) {
  std::vector<Stack> stacks;
  stacks.reserve(self.layers.size());
  for (const Layer& layer : self.layers) stacks.push_back(layer.arguments(1 + self.states));
  const pybind11::gil_scoped_release released;
  const at::AutoDispatchBelowADInplaceOrView guard;  // nothing is recorded
  Tensor zeros;
  if (given.states.empty()) zeros = at::zeros({given.batch, self.hidden_size}, given.input.options());
  Tensor x = std::move(given.input);
  std::vector<std::vector<Tensor>> final_states(self.states);
  for (int64_t begin = 0; begin < self.count(); begin += self.directions) {
    std::vector<Tensor> outputs;
    for (int64_t k = begin; k < begin + self.directions; ++k) {
      Stack& stack = stacks[static_cast<size_t>(k)];
      stack[0] = x;
      if (given.reset.defined()) stack[self.reset_at] = given.reset;
      for (size_t n = 0; n < self.states; ++n) {
        stack[1 + n] = given.states.empty() ? zeros : state_of(self, given, *given.states[n], k);
      }
      self.op.callBoxed(stack);
      outputs.push_back(std::move(stack[0]).toTensor());
      for (size_t s = 0; s < self.states; ++s) final_states[s].push_back(std::move(stack[1 + s]).toTensor());
    }
    x = outputs.size() == 1 ? std::move(outputs[0]) : at::cat(outputs, -1);
  }
  std::vector<Tensor> results;
  const int64_t width = x.size(2);
  if (!self.is_cell) results.push_back(given.batched ? std::move(x) : reshaped(std::move(x), {given.time, width}));
  for (std::vector<Tensor>& states : final_states) {
    Tensor made = self.count() == 1 ? std::move(states[0]) : at::stack(states);
    if (self.is_cell) {
      results.push_back(given.batched ? std::move(made) : reshaped(std::move(made), {self.hidden_size}));
    } else if (given.batched) {
      results.push_back(reshaped(std::move(made), {self.count(), given.batch, self.hidden_size}));
    } else {
      results.push_back(reshaped(std::move(made), {self.count(), self.hidden_size}));
    }
  }
  return results;
}

// A new reference: a single state, or a pair.
PyObject* states_of(const std::vector<Tensor>& results, size_t first) {
  if (results.size() == first + 1) return THPVariable_Wrap(results[first]);
  return tuple_of({results.begin() + static_cast<std::ptrdiff_t>(first), results.end()});
}

PyObject* call_frozen(PyObject* callable, PyObject* const* given, size_t flags, PyObject* names) {
  HANDLE_TH_ERRORS
  const Calls* const calls = reinterpret_cast<Frozen*>(callable)->calls;
  const auto count = PyVectorcall_NARGS(flags);
  const bool is_call = calls != nullptr && names == nullptr && (count == 1 || count == 4);
  TORCH_CHECK_TYPE(is_call && PyDict_CheckExact(given[0]), "expected a module's __dict__, its input, state and reset");
  const Calls& self = *calls;
  if (count == 1) return PyBool_FromLong(self.is_as_it_was(given[0]));
  Given read{};
  if (is_another_kind_of_call() || !read_input(self, given[1], read) || !self.is_as_it_was(given[0]) ||
      !read_states(self, given[2], read) || !read_reset(self, given[3], read)) {
    if (PyErr_Occurred() != nullptr) return nullptr;
    Py_RETURN_NONE;
  }
  std::vector<Tensor> results;
  try {
    results = run(self, read);
  } catch (const std::exception&) {
    Py_RETURN_NONE;  // Python calls the same operators, gets the same error, and raises it with the right type
  }
  if (self.is_cell) return states_of(results, 0);
  if (self.batch_first && read.batched) results[0] = results[0].transpose(0, 1);
  PyObject* const states = states_of(results, 1);
  if (states == nullptr) return nullptr;
  PyObject* const output = THPVariable_Wrap(results[0]);
  PyObject* const pair = output == nullptr ? nullptr : PyTuple_Pack(2, output, states);
  Py_XDECREF(output);
  Py_DECREF(states);
  return pair;
  END_HANDLE_TH_ERRORS
}

pybind11::object interned(pybind11::handle name) {
  PyObject* text = pybind11::str(name).release().ptr();
  PyUnicode_InternInPlace(&text);
  return pybind11::reinterpret_steal<pybind11::object>(text);
}

Parameter parameter_of(pybind11::handle name, pybind11::handle given, pybind11::handle mark) {
  Parameter parameter{interned(name), pybind11::reinterpret_borrow<pybind11::object>(given)};
  if (given.is_none()) return parameter;
  parameter.tensor = THPVariable_Unpack(given.ptr()).unsafeGetTensorImpl();
  const auto [address, version] = mark.cast<std::pair<uintptr_t, int64_t>>();
  parameter.data = reinterpret_cast<const void*>(address);
  parameter.version = version;
  return parameter;
}

// layer: (names, parameters, marks, prepacked), see freezing.py.
Layer layer_of(const Calls& calls, pybind11::handle layer, bool reverse) {
  const auto [names, parameters, marks, prepacked] =
      layer.cast<std::tuple<pybind11::sequence, pybind11::sequence, pybind11::sequence, pybind11::object>>();
  Layer made;
  for (size_t k = 0; k < names.size(); ++k) made.parameters.push_back(parameter_of(names[k], parameters[k], marks[k]));
  const auto& arguments = calls.op.schema().arguments();
  for (size_t k = 1 + calls.states + names.size(); k < arguments.size(); ++k) {
    const std::string& name = arguments[k].name();
    c10::IValue value = arguments[k].default_value().value_or(c10::IValue());
    if (name == "reverse") value = reverse;
    if (name == "prepacked") value = THPVariable_Unpack(prepacked.ptr());
    if (name == "save_for_backward") value = false;
    made.rest.push_back(std::move(value));
  }
  return made;
}

int init_frozen(PyObject* made, PyObject* given, PyObject*) {
  HANDLE_TH_ERRORS
  const char* name = nullptr;
  PyObject *attributes = nullptr, *layers = nullptr;
  int is_cell = 0, batch_first = 0, bidirectional = 0;
  if (PyArg_ParseTuple(given, "sOOppp", &name, &attributes, &layers, &is_cell, &batch_first, &bidirectional) == 0) {
    return -1;
  }
  std::unique_ptr<Calls> calls(new Calls{c10::Dispatcher::singleton().findSchemaOrThrow(name, "")});
  calls->is_cell = is_cell != 0;
  calls->batch_first = batch_first != 0;
  calls->directions = bidirectional != 0 ? 2 : 1;
  const auto& arguments = calls->op.schema().arguments();
  const auto is_state = [](const c10::Argument& a) { return a.name() == "h_0" || a.name() == "c_0"; };
  calls->states = static_cast<size_t>(std::count_if(arguments.begin(), arguments.end(), is_state));
  const auto reset =
      std::find_if(arguments.begin(), arguments.end(), [](const c10::Argument& a) { return a.name() == "reset"; });
  calls->reset_at = static_cast<size_t>(reset - arguments.begin());
  for (const auto& [key, value] : pybind11::handle(attributes).cast<pybind11::dict>()) {
    calls->attributes.emplace_back(interned(key), pybind11::reinterpret_borrow<pybind11::object>(value));
  }
  bool reverse = false;
  for (const auto layer : pybind11::handle(layers).cast<pybind11::sequence>()) {
    calls->layers.push_back(layer_of(*calls, layer, reverse));
    reverse = bidirectional != 0 && !reverse;
  }
  const auto size = [&](const char* called) {
    return pybind11::handle(attributes).cast<pybind11::dict>()[called].cast<int64_t>();
  };
  calls->input_size = size("input_size");
  calls->hidden_size = size("hidden_size");
  calls->dtype = calls->layers.at(0).parameters.at(0).value().toTensor().scalar_type();
  Frozen& self = *reinterpret_cast<Frozen*>(made);
  self.vectorcall = call_frozen;
  delete std::exchange(self.calls, calls.release());
  return 0;
  END_HANDLE_TH_ERRORS_RET(-1)
}

void dealloc_frozen(PyObject* object) {
  delete reinterpret_cast<Frozen*>(object)->calls;
  PyTypeObject* const type = Py_TYPE(object);
  type->tp_free(object);
  Py_DECREF(type);
}

}  // namespace

PyObject* make_frozen_type() {
  return make_vectorcall_type<Frozen>("fourfold.Frozen", "A frozen module's calls.", init_frozen, dealloc_frozen);
}

}  // namespace fourfold::bindings
