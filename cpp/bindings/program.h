// fourfold.Program for Python, compiled for each minor version of torch: a call of it is a call of a program with tensors.
#pragma once

#include <Python.h>

namespace fourfold::bindings {

// The type, a new reference; null with a Python error set.
PyObject* make_program_type();

}  // namespace fourfold::bindings
