#pragma once

#include <tuple>

#include "ops/lltm_cell_job.h"
#include "ops/aten.h"

namespace fourfold {

// The arguments as kernels take them: contiguous, of one dtype, the bias flat.
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
  Tensor kept;  // (batch, 3 * hidden_size), or (0) when no backward will follow
};

// [h, x] side by side: (rows, hidden_size) and (rows, input_size) give (rows, hidden_size + input_size). A backend where
// that copy costs less than a second product has one.
using Concatenate = Tensor(const Tensor& h, const Tensor& x);

struct LltmCellKernels {
  bool low_precision;  // whether float16 and bfloat16 are computed in as they are; otherwise in float32
  LltmCellOutputs (*forward)(const LltmCellInputs& inputs, bool save_for_backward);
  void (*backward)(const LltmCellBackward& job);
  Concatenate* concatenate;  // or null
  // Whether the backward makes the products too at that size; null for never.
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
