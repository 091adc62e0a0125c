// fourfold.Model for Python: a model loaded from a file, called with the leaves of its arguments.
#include <Python.h>

#include <fourfold/model.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include "program.h"
#include "values.h"
#include "vectorcall_type.h"

namespace fourfold::bindings {
namespace {

// Model(path, device, allow, generator): raises ValueError if the file can't be loaded. Called with leaves, returns a
// list.
struct LoadedModel {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  Model* model;
};

// Stream(model, {name: first state}): called with the other leaves, returns a list of the others. Raises ValueError.
struct LoadedStream {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  Stream* stream;
};

template <typename Callable>
c10::IValue leaf_of(PyObject* given, const Callable& callable, size_t place) {
  if (PyUnicode_Check(given)) return pybind11::handle(given).cast<std::string>();
  if (!is_value(given)) {
    const auto names = callable.arguments();
    const std::string name = place < names.size() ? names[place] : "argument " + std::to_string(place);
    TORCH_CHECK_TYPE(false, "model: expected ", name, " to be a tensor or a number, but got ", Py_TYPE(given)->tp_name,
                     "; convert it with torch.as_tensor");
  }
  return value_of(given);
}

PyObject* object_of_leaf(const c10::IValue& value) {
  if (!value.isString()) return object_of(value);
  const std::string& text = value.toStringRef();
  return PyUnicode_FromStringAndSize(text.data(), static_cast<Py_ssize_t>(text.size()));
}

template <typename Callable>
PyObject* call_with_leaves(Callable& callable, PyObject* const* arguments, size_t flags, PyObject* names) {
  HANDLE_TH_ERRORS
  TORCH_CHECK_TYPE(names == nullptr, "model: expected leaves without names");
  std::vector<c10::IValue> values;
  const auto count = static_cast<size_t>(PyVectorcall_NARGS(flags));
  values.reserve(count);
  for (size_t k = 0; k < count; ++k) values.push_back(leaf_of(arguments[k], callable, k));
  try {
    const pybind11::gil_scoped_release released;
    values = callable(std::move(values));
  } catch (const std::invalid_argument& error) {
    PyErr_SetString(PyExc_ValueError, error.what());
    return nullptr;
  }
  PyObject* const results = PyList_New(static_cast<Py_ssize_t>(values.size()));
  for (size_t k = 0; results != nullptr && k < values.size(); ++k) {
    PyList_SET_ITEM(results, static_cast<Py_ssize_t>(k), object_of_leaf(values[k]));
  }
  return results;
  END_HANDLE_TH_ERRORS
}

PyObject* call_model(PyObject* callable, PyObject* const* arguments, size_t flags, PyObject* names) {
  return call_with_leaves(*reinterpret_cast<LoadedModel*>(callable)->model, arguments, flags, names);
}

PyObject* call_stream(PyObject* callable, PyObject* const* arguments, size_t flags, PyObject* names) {
  return call_with_leaves(*reinterpret_cast<LoadedStream*>(callable)->stream, arguments, flags, names);
}

int init_model(PyObject* made, PyObject* given, PyObject*) {
  HANDLE_TH_ERRORS
  auto& self = *reinterpret_cast<LoadedModel*>(made);
  const char* device = nullptr;
  PyObject *path = nullptr, *allow = nullptr;
  LoadOptions options;
  int generator = 1;
  if (!PyArg_ParseTuple(given, "O&zOi", PyUnicode_FSConverter, &path, &device, &allow, &generator)) return -1;
  const auto held = pybind11::reinterpret_steal<pybind11::object>(path);
  if (self.model != nullptr) {
    PyErr_SetString(PyExc_TypeError, "model: expected to be made once");
    return -1;
  }
  if (device != nullptr) options.device = c10::Device(device);
  options.allow = pybind11::handle(allow).cast<std::vector<std::string>>();
  options.generator = generator;
  try {
    const std::string name(PyBytes_AS_STRING(path), static_cast<size_t>(PyBytes_GET_SIZE(path)));
    const pybind11::gil_scoped_release released;
    self.model = new Model(load(name, options));
  } catch (const LoadError& error) {
    PyErr_SetString(PyExc_ValueError, error.what());
    return -1;
  }
  self.vectorcall = call_model;
  return 0;
  END_HANDLE_TH_ERRORS_RET(-1)
}

void dealloc_model(PyObject* made) {
  PyTypeObject* type = Py_TYPE(made);
  delete reinterpret_cast<LoadedModel*>(made)->model;
  type->tp_free(made);
  Py_DECREF(type);
}

void dealloc_stream(PyObject* made) {
  PyTypeObject* type = Py_TYPE(made);
  delete reinterpret_cast<LoadedStream*>(made)->stream;
  type->tp_free(made);
  Py_DECREF(type);
}

const Model& model_of(PyObject* given) {
  TORCH_CHECK_TYPE(Py_TYPE(given)->tp_dealloc == dealloc_model && reinterpret_cast<LoadedModel*>(given)->model != nullptr,
                   "expected a Model that was made of a file, but got ", Py_TYPE(given)->tp_name);
  return *reinterpret_cast<LoadedModel*>(given)->model;
}

Stream& stream_of(PyObject* given) {
  TORCH_CHECK_TYPE(Py_TYPE(given)->tp_dealloc == dealloc_stream && reinterpret_cast<LoadedStream*>(given)->stream != nullptr,
                   "expected a Stream that was made of a Model, but got ", Py_TYPE(given)->tp_name);
  return *reinterpret_cast<LoadedStream*>(given)->stream;
}

int init_stream(PyObject* made, PyObject* given, PyObject*) {
  HANDLE_TH_ERRORS
  auto& self = *reinterpret_cast<LoadedStream*>(made);
  PyObject *model = nullptr, *first = nullptr;
  if (!PyArg_ParseTuple(given, "OO!", &model, &PyDict_Type, &first)) return -1;
  TORCH_CHECK_TYPE(self.stream == nullptr, "stream: expected to be made once");
  std::map<std::string, at::Tensor> tensors;
  for (const auto& [name, tensor] : pybind11::reinterpret_borrow<pybind11::dict>(first)) {
    tensors[name.cast<std::string>()] = tensor.cast<at::Tensor>();
  }
  try {
    self.stream = new Stream(model_of(model), tensors);
  } catch (const std::invalid_argument& error) {
    PyErr_SetString(PyExc_ValueError, error.what());
    return -1;
  }
  self.vectorcall = call_stream;
  return 0;
  END_HANDLE_TH_ERRORS_RET(-1)
}

}  // namespace

PyObject* make_stream_type() {
  return make_vectorcall_type<LoadedStream>("fourfold.Stream", "A stream of a model's calls.", init_stream, dealloc_stream);
}

PyObject* reset_stream(PyObject*, PyObject* arguments) {
  HANDLE_TH_ERRORS
  PyObject *given = nullptr, *streams = nullptr, *dim = nullptr;
  if (!PyArg_ParseTuple(arguments, "OOO", &given, &streams, &dim)) return nullptr;
  Stream& stream = stream_of(given);
  const at::Tensor which = streams == Py_None ? at::Tensor() : THPVariable_Unpack(streams);
  std::map<std::string, int64_t> dims;
  if (PyDict_Check(dim)) dims = pybind11::handle(dim).cast<std::map<std::string, int64_t>>();
  const int64_t number = PyLong_Check(dim) ? pybind11::handle(dim).cast<int64_t>() : 0;
  const bool is_number = PyLong_Check(dim), is_known = dim != Py_None;
  try {
    const pybind11::gil_scoped_release released;  // it waits for a call of another thread
    if (!which.defined()) {
      stream.reset();
    } else if (is_number) {
      stream.reset(which, number);
    } else if (is_known) {
      stream.reset(which, dims);
    } else {
      stream.reset(which);
    }
  } catch (const std::invalid_argument& error) {
    PyErr_SetString(PyExc_ValueError, error.what());
    return nullptr;
  }
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyObject* state_of_stream(PyObject*, PyObject* given) {
  HANDLE_TH_ERRORS
  const Stream& stream = stream_of(given);
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  {
    const pybind11::gil_scoped_release released;
    tensors = stream.state();
  }
  pybind11::dict state;
  for (const auto& [name, tensor] : tensors) {
    state[pybind11::str(name)] = pybind11::reinterpret_steal<pybind11::object>(THPVariable_Wrap(tensor));
  }
  return state.release().ptr();
  END_HANDLE_TH_ERRORS
}

PyObject* make_model_type() {
  return make_vectorcall_type<LoadedModel>("fourfold.Model", "A model loaded from a file.", init_model, dealloc_model);
}

PyObject* describe_model(PyObject*, PyObject* given) {
  HANDLE_TH_ERRORS
  const Model& model = model_of(given);
  return pybind11::make_tuple(model.graph(), model.structure(), model.arguments(), model.tensor_names(), model.results(), model.state())
      .release()
      .ptr();
  END_HANDLE_TH_ERRORS
}

PyObject* tensor_of_model(PyObject*, PyObject* arguments) {
  HANDLE_TH_ERRORS
  PyObject* given = nullptr;
  const char* name = nullptr;
  if (!PyArg_ParseTuple(arguments, "Os", &given, &name)) return nullptr;
  return THPVariable_Wrap(model_of(given).tensor(name));
  END_HANDLE_TH_ERRORS
}

}  // namespace fourfold::bindings
