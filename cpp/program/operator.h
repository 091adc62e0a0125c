#pragma once

#include <torch/csrc/stable/c/shim.h>

#include <vector>

#include "ops/check.h"

namespace fourfold {

// Runs a program and returns its outputs. Its tensor inputs are `tensors`, in order; its floating-point scalars are
// `floats`, its integers and booleans `integers`. generator: see fourfold_program_generate(). Deletes the text.
std::vector<Tensor> run_program(
    StringHandle text, const std::vector<Tensor>& tensors, const std::vector<double>& floats,
    const std::vector<int64_t>& integers, int64_t generator);

}  // namespace fourfold
