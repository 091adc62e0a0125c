#pragma once

#include <tuple>

#include "ops/recurrent.h"

namespace fourfold {

// Checks the parameters that lltm and lltm_cell share.
void check_lltm_parameters(
    const char* op, ScalarType dtype, int64_t input_size, int64_t hidden_size, const Tensor& weights,
    const OptionalTensor& bias);

using LltmOutputs = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>;

LltmOutputs lltm(
    const RecurrentKernels& kernels, const Tensor& input, const Tensor& h_0, const Tensor& c_0, const Tensor& weights,
    const OptionalTensor& bias, bool reverse,
    const OptionalTensor& batch_sizes, const OptionalTensor& reset, const OptionalTensor& prepacked, bool allow_tf32,
    bool save_for_backward);

LltmOutputs lltm_backward(
    const RecurrentKernels& kernels, const OptionalTensor& grad_output, const OptionalTensor& grad_h_n,
    const OptionalTensor& grad_c_n, const Tensor& input, const Tensor& h_0, const Tensor& c_0, const Tensor& weights,
    const OptionalTensor& bias, bool reverse,
    const OptionalTensor& batch_sizes, const OptionalTensor& reset, bool allow_tf32, const Tensor& output,
    const Tensor& kept, const Tensor& cells, const std::vector<bool>& output_mask);

// Packs the weights for the CPU kernels, to reuse them in many calls.
Tensor lltm_prepack(const RecurrentKernels& kernels, const Tensor& weights, const OptionalTensor& bias);

}  // namespace fourfold
