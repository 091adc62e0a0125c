#pragma once

#include <tuple>

#include "ops/recurrent.h"

namespace fourfold {

using GruOutputs = std::tuple<Tensor, Tensor, Tensor>;
using GruGradients = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

GruOutputs gru(
    const RecurrentKernels& kernels, const Tensor& input, const Tensor& h_0, const Tensor& weight_ih,
    const Tensor& weight_hh, const OptionalTensor& bias_ih, const OptionalTensor& bias_hh, bool reverse,
    const OptionalTensor& batch_sizes, const OptionalTensor& reset, const OptionalTensor& prepacked, bool allow_tf32,
    bool save_for_backward);

GruGradients gru_backward(
    const RecurrentKernels& kernels, const OptionalTensor& grad_output, const OptionalTensor& grad_h_n,
    const Tensor& input, const Tensor& h_0, const Tensor& weight_ih,
    const Tensor& weight_hh, const OptionalTensor& bias_ih, const OptionalTensor& bias_hh, bool reverse,
    const OptionalTensor& batch_sizes, const OptionalTensor& reset, bool allow_tf32, const Tensor& output,
    const Tensor& kept, const std::vector<bool>& output_mask);

// Packs the weights for the CPU kernels, to reuse them in many calls.
Tensor gru_prepack(
    const RecurrentKernels& kernels, const Tensor& weight_ih, const Tensor& weight_hh, const OptionalTensor& bias_ih,
    const OptionalTensor& bias_hh);

}  // namespace fourfold
