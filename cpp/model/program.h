// Calls of programs with torch's tensors.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <fourfold/program.h>

#include <vector>

#include "outputs.h"

namespace fourfold::model {

// A number as programs take it: its 8 bytes, of that dtype.
int64_t bits_of(const at::Scalar& number, at::ScalarType dtype);
// Of a number, or of a CPU tensor that is one.
at::Scalar scalar_of(const c10::IValue& number);

// Its outputs, appended to `outputs`: new tensors, or those of `targets` that could be written into, by output (outputs.h). Throws
// c10::Error where the inputs, tensors and numbers, are not what it takes.
void run_program(const NamedProgram& program, const std::vector<const c10::IValue*>& inputs, std::vector<at::Tensor>& outputs,
                 const std::vector<Target>& targets = {});

}  // namespace fourfold::model
