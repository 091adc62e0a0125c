#pragma once

#include <tuple>

#include "ops/recurrent.h"

namespace fourfold {

using LstmOutputs = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>;
using LstmGradients = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

LstmOutputs lstm(
    const RecurrentKernels& kernels, const Tensor& input, const Tensor& h_0, const Tensor& c_0,
    const Tensor& weight_ih, const Tensor& weight_hh, const OptionalTensor& bias_ih, const OptionalTensor& bias_hh,
    bool reverse,
    const OptionalTensor& batch_sizes, const OptionalTensor& reset, const OptionalTensor& prepacked, bool allow_tf32,
    bool save_for_backward);

LstmGradients lstm_backward(
    const RecurrentKernels& kernels, const OptionalTensor& grad_output, const OptionalTensor& grad_h_n,
    const OptionalTensor& grad_c_n, const Tensor& input, const Tensor& h_0, const Tensor& c_0,
    const Tensor& weight_ih, const Tensor& weight_hh, const OptionalTensor& bias_ih, const OptionalTensor& bias_hh,
    bool reverse,
    const OptionalTensor& batch_sizes, const OptionalTensor& reset, bool allow_tf32, const Tensor& output,
    const Tensor& kept, const Tensor& cells, const std::vector<bool>& output_mask);

// Packs the weights for the CPU kernels, to reuse them in many calls.
Tensor lstm_prepack(
    const RecurrentKernels& kernels, const Tensor& weight_ih, const Tensor& weight_hh, const OptionalTensor& bias_ih,
    const OptionalTensor& bias_hh);

}  // namespace fourfold
