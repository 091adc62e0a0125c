// fourfold.Program for Python, compiled for each minor version of torch: a call of it is a call of a program with tensors.
#pragma once

#include <Python.h>

#include "../model/program.h"

namespace fourfold::bindings {

// The types' objects, new references; null with a Python error set.
PyObject* make_program_type();
PyObject* make_graph_type();
PyObject* make_compiled_type();
PyObject* make_frozen_type();
PyObject* make_model_type();

// Of a Model, a tuple: its graph and its structure in JSON, the names of its arguments, its tensors by name, and how many results it has.
PyObject* describe_model(PyObject*, PyObject* model);

// Of an object of the type Program; throws TypeError for others. It lives as long as the object.
model::NamedProgram program_of(PyObject* object);

}  // namespace fourfold::bindings
