#pragma once

#include <tuple>

#include "ops/lltm_cell_job.h"
#include "ops/aten.h"

namespace fourfold {

// The arguments of kernels: contiguous, of one dtype, with a flat bias.
struct LltmCellInputs {
  Tensor x;              // (batch, input_size)
  Tensor h;              // (batch, hidden_size)
  Tensor c;              // (batch, hidden_size)
  Tensor weights;        // (3 * hidden_size, hidden_size + input_size)
  OptionalTensor bias;   // (3 * hidden_size)
};

LltmCellFactors factors_of(const LltmCellInputs& inputs);

struct LltmCellOutputs {
  Tensor next_h;
  Tensor next_c;
  Tensor kept;  // (batch, 3 * hidden_size), or (0) without backward
};

// Concatenates [h, x]: (rows, hidden_size) and (rows, input_size) to (rows, hidden_size + input_size). Backends on
// which this copy costs less than a second product implement it.
using Concatenate = Tensor(const Tensor& h, const Tensor& x);

struct LltmCellKernels {
  bool low_precision;  // whether kernels compute in float16 and bfloat16; otherwise these are converted to float32
  LltmCellOutputs (*forward)(const LltmCellInputs& inputs, bool save_for_backward);
  void (*backward)(const LltmCellBackward& job);
  Concatenate* concatenate;  // or null
  // Whether, for that size, the backward kernel also computes the products; null: never.
  bool (*multiplies)(int64_t batch, int64_t input_size, int64_t hidden_size) = nullptr;
};

std::tuple<Tensor, Tensor, Tensor> lltm_cell(
    const LltmCellKernels& kernels, const Tensor& x, const Tensor& h, const Tensor& c, const Tensor& weights,
    const OptionalTensor& bias, bool save_for_backward);

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> lltm_cell_backward(
    const LltmCellKernels& kernels, const OptionalTensor& grad_next_h, const OptionalTensor& grad_next_c,
    const Tensor& x, const Tensor& h, const Tensor& c, const Tensor& weights, const OptionalTensor& bias,
    const Tensor& next_c, const Tensor& kept, const std::vector<bool>& output_mask);

}  // namespace fourfold
