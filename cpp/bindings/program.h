// fourfold.Program for Python, compiled for each minor version of torch: runs a program on torch's tensors.
#pragma once

#include <Python.h>

#include "../graph/program.h"

namespace fourfold::bindings {

// New references to type objects; null with a Python error set.
PyObject* make_program_type();
PyObject* make_graph_type();
PyObject* make_compiled_type();
PyObject* make_frozen_type();
PyObject* make_model_type();

// Returns a tuple: a Model's graph and structure in JSON, the names of its arguments, its tensors by name, and the
// number of results.
PyObject* describe_model(PyObject*, PyObject* model);

// The program of an object of type Program; throws TypeError for other types. It lives as long as the object.
graph::NamedProgram program_of(PyObject* object);

}  // namespace fourfold::bindings
