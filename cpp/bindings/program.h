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
PyObject* make_stream_type();

// Returns a tuple: a Model's graph and structure in JSON, the names of its arguments and of its tensors, and
// the number of results.
PyObject* describe_model(PyObject*, PyObject* model);
// (stream, which of a batch or None, a dimension, a dict of them by state, or None)
PyObject* reset_stream(PyObject*, PyObject* arguments);
// A Stream's state by name.
PyObject* state_of_stream(PyObject*, PyObject* stream);
// (model, name): one of its tensors.
PyObject* tensor_of_model(PyObject*, PyObject* arguments);

// The program of an object of type Program; throws TypeError for other types. It lives as long as the object.
graph::NamedProgram program_of(PyObject* object);

}  // namespace fourfold::bindings
