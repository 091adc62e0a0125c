// Runs programs on torch's tensors.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <fourfold/program.h>

#include <vector>

#include "outputs.h"

namespace fourfold::graph {

// The 8 bytes of a scalar argument of that dtype.
int64_t bits_of(const at::Scalar& number, at::ScalarType dtype);
// A number as a scalar, or the element of a 0-d CPU tensor.
at::Scalar scalar_of(const c10::IValue& number);

// Appends the program's outputs to `outputs`: new tensors, or those of `targets` that it could write into (outputs.h).
// Throws c10::Error if the inputs (tensors and numbers) don't match the program.
void run_program(const NamedProgram& program, const std::vector<const c10::IValue*>& inputs, std::vector<at::Tensor>& outputs,
                 const std::vector<Target>& targets = {});

}  // namespace fourfold::graph
