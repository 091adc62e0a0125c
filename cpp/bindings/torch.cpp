// The parts that need torch's C++ API, and are therefore compiled for each minor version of torch: the operators'
// gradients, and fast calls of operators from Python.
#include <Python.h>

#include <ATen/PythonTorchFunctionTLS.h>
#include <fourfold/autograd.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/jit/frontend/tracer.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "../graph/memory.h"
#include "program.h"
#include "steps.h"
#include "vectorcall_type.h"

namespace {

using c10::IValue;
using c10::TypeKind;
using torch::jit::Stack;

struct Argument {
  c10::TypePtr type;
  IValue otherwise;
};

constexpr size_t nowhere = static_cast<size_t>(-1);

// Call(name, kept, other, refuse): called with positional arguments, returns the operator's outputs without the last
// `kept`, which the operator computes only if a backward may follow. Calls that it doesn't support are passed to
// other(): subclasses of Tensor, function modes, transforms, tracing. If the operator throws, it calls refuse(error,
// *arguments).
struct CallObject {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  const c10::OperatorHandle* op;
  const std::vector<Argument>* arguments;
  size_t required;
  size_t results;
  size_t save_at;          // the index of save_for_backward among the arguments
  size_t need_weights_at;  // of need_weights
  size_t weights_at;
  size_t dtype_at;  // of dtype, which Python must pass unless all tensors have the same dtype
  PyObject* other;
  PyObject* refuse;
};

bool read(const c10::TypePtr& type, PyObject* given, Stack& stack);

bool read_list(const c10::TypePtr& type, PyObject* given, Stack& stack) {
  Stack elements;
  const Py_ssize_t count = PySequence_Fast_GET_SIZE(given);
  elements.reserve(static_cast<size_t>(count));
  for (Py_ssize_t k = 0; k < count; ++k) {
    if (!read(type, PySequence_Fast_GET_ITEM(given, k), elements)) return false;
  }
  c10::impl::GenericList list(type);
  list.reserve(elements.size());
  for (IValue& element : elements) list.push_back(std::move(element));
  stack.emplace_back(std::move(list));
  return true;
}

// Pushes the value of `given` if it is exactly of that type (no subclass). Returns whether it is.
bool read(const c10::TypePtr& type, PyObject* given, Stack& stack) {
  switch (type->kind()) {
    case TypeKind::TensorType:
      if (!THPVariable_CheckExact(given)) return false;
      stack.emplace_back(THPVariable_Unpack(given));
      return true;
    case TypeKind::BoolType:
      if (!PyBool_Check(given)) return false;
      stack.emplace_back(given == Py_True);
      return true;
    case TypeKind::FloatType:
      if (!PyFloat_CheckExact(given) && !PyLong_CheckExact(given)) return false;
      stack.emplace_back(PyFloat_AsDouble(given));
      return PyErr_Occurred() == nullptr;
    case TypeKind::IntType:  // among our operators' arguments only dtypes have this type
      if (!THPDtype_Check(given)) return false;
      stack.emplace_back(static_cast<int64_t>(reinterpret_cast<THPDtype*>(given)->scalar_type));
      return true;
    case TypeKind::StringType: {
      if (!PyUnicode_CheckExact(given)) return false;
      const char* characters = PyUnicode_AsUTF8(given);
      if (characters == nullptr) return false;
      stack.emplace_back(std::string(characters));
      return true;
    }
    case TypeKind::OptionalType:
      if (given != Py_None) return read(type->expectRef<c10::OptionalType>().getElementType(), given, stack);
      stack.emplace_back();
      return true;
    case TypeKind::ListType: {
      if (!PyList_CheckExact(given) && !PyTuple_CheckExact(given)) return false;
      bool known = false;
#ifdef Py_GIL_DISABLED
      Py_BEGIN_CRITICAL_SECTION(given);
#endif
      known = read_list(type->expectRef<c10::ListType>().getElementType(), given, stack);
#ifdef Py_GIL_DISABLED
      Py_END_CRITICAL_SECTION();
#endif
      return known;
    }
    default: return false;
  }
}

// Whether all tensors have the same floating-point dtype, so that type promotion isn't needed.
bool alike(const Stack& stack) {
  const IValue* first = nullptr;
  for (const IValue& value : stack) {
    if (!value.isTensor()) continue;
    if (first == nullptr) first = &value;
    if (value.toTensor().scalar_type() != first->toTensor().scalar_type()) return false;
  }
  return first != nullptr && first->toTensor().is_floating_point();
}

// Pushes all arguments. Returns false for unsupported ones.
bool read_all(const CallObject& self, PyObject* const* given, size_t count, Stack& stack) {
  const std::vector<Argument>& arguments = *self.arguments;
  if (count < self.required || count > arguments.size()) return false;
  stack.reserve(arguments.size());
  for (size_t k = 0; k < count; ++k) {
    if (!read(arguments[k].type, given[k], stack)) return false;
  }
  // The result's dtype may depend on the numbers' Python types, which are lost here.
  if (self.dtype_at != nowhere && count <= self.dtype_at && !alike(stack)) return false;
  for (size_t k = count; k < arguments.size(); ++k) stack.push_back(arguments[k].otherwise);
  return true;
}

bool is_watched() {
  return at::impl::torch_function_mode_enabled() || torch::jit::tracer::isTracing() ||
         c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::FuncTorchDynamicLayerFrontMode);
}

bool requires_grad(const IValue& value) {
  if (value.isTensor()) return value.toTensor().requires_grad();
  if (!value.isList()) return false;
  const auto elements = value.toListRef();
  return std::any_of(elements.begin(), elements.end(), requires_grad);
}

PyObject* run(const CallObject& self, Stack& stack) {
  HANDLE_TH_ERRORS
  const bool recording = at::GradMode::is_enabled();
  if (self.save_at != nowhere) {
    stack[self.save_at] = recording && std::any_of(stack.begin(), stack.end(), requires_grad);
  }
  if (self.need_weights_at != nowhere) {
    stack[self.need_weights_at] = recording && requires_grad(stack[self.weights_at]);
  }
  {
    const pybind11::gil_scoped_release released;
    self.op->callBoxed(stack);
  }
  if (self.results == 1) return THPVariable_Wrap(std::move(stack[0]).toTensor());
  PyObject* results = PyTuple_New(static_cast<Py_ssize_t>(self.results));
  for (size_t k = 0; results != nullptr && k < self.results; ++k) {
    PyTuple_SET_ITEM(results, static_cast<Py_ssize_t>(k), THPVariable_Wrap(std::move(stack[k]).toTensor()));
  }
  return results;
  END_HANDLE_TH_ERRORS
}

PyObject* refuse(const CallObject& self, PyObject* const* given, size_t count) {
  HANDLE_TH_ERRORS
  const pybind11::error_already_set error;  // fetches and clears the current error
  std::vector<PyObject*> arguments{error.value().ptr()};
  arguments.insert(arguments.end(), given, given + count);
  return PyObject_Vectorcall(self.refuse, arguments.data(), arguments.size(), nullptr);
  END_HANDLE_TH_ERRORS
}

PyObject* call(PyObject* callable, PyObject* const* given, size_t flags, PyObject* names) {
  const CallObject& self = *reinterpret_cast<const CallObject*>(callable);
  const auto count = static_cast<size_t>(PyVectorcall_NARGS(flags));
  Stack stack;
  if (names != nullptr || is_watched() || !read_all(self, given, count, stack)) {
    PyErr_Clear();
    return PyObject_Vectorcall(self.other, given, flags, names);
  }
  PyObject* results = run(self, stack);
  if (results == nullptr && PyErr_ExceptionMatches(PyExc_Exception)) return refuse(self, given, count);
  return results;
}

int make_call(PyObject* made, PyObject* given, PyObject*) try {
  CallObject& self = *reinterpret_cast<CallObject*>(made);
  const char* name = nullptr;
  Py_ssize_t kept = 0;
  PyObject *other = nullptr, *refuse = nullptr;
  if (!PyArg_ParseTuple(given, "snOO", &name, &kept, &other, &refuse)) return -1;
  if (self.op != nullptr) {
    PyErr_SetString(PyExc_TypeError, "call: expected to be made once");
    return -1;
  }
  self.op = new c10::OperatorHandle(c10::Dispatcher::singleton().findSchemaOrThrow(name, ""));
  const c10::FunctionSchema& schema = self.op->schema();
  auto* arguments = new std::vector<Argument>;
  self.results = schema.returns().size() - static_cast<size_t>(kept);
  self.required = 0;
  self.save_at = self.need_weights_at = self.weights_at = self.dtype_at = nowhere;
  for (const c10::Argument& argument : schema.arguments()) {
    const size_t place = arguments->size();
    if (argument.name() == "save_for_backward") self.save_at = place;
    if (argument.name() == "need_weights") self.need_weights_at = place;
    if (argument.name() == "weights") self.weights_at = place;
    if (argument.name() == "dtype") self.dtype_at = place;
    if (!argument.default_value()) self.required = place + 1;
    arguments->push_back({argument.type(), argument.default_value().value_or(IValue())});
  }
  self.arguments = arguments;
  Py_INCREF(self.other = other);
  Py_INCREF(self.refuse = refuse);
  self.vectorcall = call;
  return 0;
} catch (const std::exception& error) {
  PyErr_SetString(PyExc_RuntimeError, error.what());
  return -1;
}

PyObject* enable_gradients(PyObject*, PyObject*) try {
  fourfold::enable_gradients();
  Py_RETURN_NONE;
} catch (const std::exception& error) {
  PyErr_SetString(PyExc_ImportError, error.what());
  return nullptr;
}

int fill(PyObject* module) {
  const auto add = [module](const char* name, PyObject* type) {
    return type == nullptr ? -1 : PyModule_AddObject(module, name, type);
  };
  // One for each operator, never freed.
  PyObject* const type = fourfold::bindings::make_vectorcall_type<CallObject>(
      "fourfold.Call", "An operator's calls.", make_call, nullptr);
  const int failed = add("Call", type);
  if (failed != 0 || add("Program", fourfold::bindings::make_program_type()) != 0) return -1;
  if (add("Graph", fourfold::bindings::make_graph_type()) != 0) return -1;
  if (add("Compiled", fourfold::bindings::make_compiled_type()) != 0) return -1;
  if (add("Model", fourfold::bindings::make_model_type()) != 0) return -1;
  if (add("Stream", fourfold::bindings::make_stream_type()) != 0) return -1;
  return add("Frozen", fourfold::bindings::make_frozen_type());
}

PyObject* keep_memory(PyObject*, PyObject* bytes) {
  const size_t most = PyLong_AsSize_t(bytes);
  if (PyErr_Occurred() != nullptr) return nullptr;
  fourfold::graph::keep_at_most(most);
  Py_RETURN_NONE;
}

PyObject* release_memory(PyObject*, PyObject*) { return PyLong_FromSize_t(fourfold::graph::release_kept_memory()); }

PyMethodDef methods[] = {
    {"keep_memory", keep_memory, METH_O, "keep_memory(bytes): sets the size of the cache for results' memory."},
    {"release_memory", release_memory, METH_NOARGS, "Frees the cached memory and returns its size in bytes."},
    {"describe_model", fourfold::bindings::describe_model, METH_O,
     "For a Model: (graph and structure in JSON, names of arguments and tensors, number of results, state)."},
    {"reset_stream", fourfold::bindings::reset_stream, METH_VARARGS, "reset_stream(stream, streams, dim)"},
    {"state_of_stream", fourfold::bindings::state_of_stream, METH_O, "A Stream's state by name."},
    {"tensor_of_model", fourfold::bindings::tensor_of_model, METH_VARARGS, "tensor_of_model(model, name)"},
    {"plan_loop", fourfold::bindings::plan_loop, METH_VARARGS,
     "plan_loop(step, given, values, firsts): how the loop of a plan would run: (why not as a nest, the nest's layout, why "
     "not in stages, the stages)."},
    {"enable_gradients", enable_gradients, METH_NOARGS,
     "Registers the operators' gradients. Raises ImportError if this module was compiled for another torch."},
    {nullptr, nullptr, 0, nullptr}};
PyModuleDef_Slot slots[] = {
    {Py_mod_exec, reinterpret_cast<void*>(fill)},
#ifdef Py_mod_gil
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, nullptr}};
PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "fourfold's gradients and calls, for one minor version of torch", nullptr, 0, methods, slots,
    nullptr, nullptr, nullptr};

}  // namespace

#define FOURFOLD_INIT_OF(name) PyInit_##name
#define FOURFOLD_INIT(name) FOURFOLD_INIT_OF(name)

PyMODINIT_FUNC FOURFOLD_INIT(FOURFOLD_MODULE)() { return PyModuleDef_Init(&module); }
