#pragma once

#include <torch/csrc/stable/c/shim.h>

#include <vector>

#include "ops/check.h"

namespace fourfold {

// The outputs of the program. Its inputs are the tensors in order and, between them, its numbers: floating ones from `floats`,
// integers and booleans from `integers`. generator: fourfold_program_generate()'s. The text is deleted.
std::vector<Tensor> run_program(
    StringHandle text, const std::vector<Tensor>& tensors, const std::vector<double>& floats,
    const std::vector<int64_t>& integers, int64_t generator);

}  // namespace fourfold
