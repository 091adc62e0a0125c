// Converts the inputs and outputs of compiled functions between Python and C++: tensors and numbers.
#pragma once

#include <Python.h>

#include <ATen/core/ivalue.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>

#include <vector>

#include "../graph/values.h"

namespace fourfold::bindings {

using graph::has_tangent;
using graph::is_wrapped;
using graph::Values;

inline bool is_value(PyObject* given) {
  return THPVariable_Check(given) || given == Py_None || PyLong_Check(given) || PyFloat_Check(given);
}

// A tensor, a number or None. Throws TypeError for other types, and Python's error for integers beyond 64 bits.
inline c10::IValue value_of(PyObject* given) {
  if (THPVariable_Check(given)) return THPVariable_Unpack(given);
  if (given == Py_None) return {};
  if (PyBool_Check(given)) return given == Py_True;
  if (PyLong_Check(given)) {
    const auto number = static_cast<int64_t>(PyLong_AsLongLong(given));
    if (number == -1 && PyErr_Occurred() != nullptr) throw python_error();
    return number;
  }
  TORCH_CHECK_TYPE(PyFloat_Check(given), "expected a tensor or a number, but got ", Py_TYPE(given)->tp_name);
  return PyFloat_AS_DOUBLE(given);
}

// A new reference.
inline PyObject* object_of(const c10::IValue& value) {
  if (value.isTensor()) return THPVariable_Wrap(value.toTensor());
  if (value.isBool()) return PyBool_FromLong(value.toBool());
  if (value.isInt()) return PyLong_FromLongLong(value.toInt());
  if (value.isDouble()) return PyFloat_FromDouble(value.toDouble());
  Py_RETURN_NONE;
}

// A new reference; null with a Python error set.
inline PyObject* tuple_of(const std::vector<c10::IValue>& values) {
  PyObject* made = PyTuple_New(static_cast<Py_ssize_t>(values.size()));
  for (size_t k = 0; made != nullptr && k < values.size(); ++k) {
    PyTuple_SET_ITEM(made, static_cast<Py_ssize_t>(k), object_of(values[k]));
  }
  return made;
}

}  // namespace fourfold::bindings
