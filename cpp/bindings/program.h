// fourfold.Program for Python, compiled for each minor version of torch: a call of it is a call of a program with tensors.
#pragma once

#include <Python.h>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <fourfold/program.h>

#include <vector>

#include "outputs.h"

namespace fourfold::bindings {

// The types' objects, new references; null with a Python error set.
PyObject* make_program_type();
PyObject* make_graph_type();
PyObject* make_compiled_type();
PyObject* make_frozen_type();

// Of an object of the type Program; throws TypeError for others. It lives as long as the object.
NamedProgram program_of(PyObject* object);

// A number as programs take it: its 8 bytes, of that dtype.
int64_t bits_of(const at::Scalar& number, at::ScalarType dtype);

// Its outputs, appended to `outputs`: new tensors, or those of `targets` that could be written into, by output (outputs.h). Throws
// c10::Error where the inputs, tensors and numbers, are not what it takes.
void run_program(const NamedProgram& program, const std::vector<const c10::IValue*>& inputs, std::vector<at::Tensor>& outputs,
                 const std::vector<Target>& targets = {});

}  // namespace fourfold::bindings
