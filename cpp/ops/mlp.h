#pragma once

#include <tuple>

#include "ops/aten.h"
#include "ops/mlp_job.h"

namespace fourfold {

struct MlpSizes {
  int64_t batch;  // the product of x's leading dimensions
  int64_t input_size;
  int64_t hidden_size;
  int64_t output_size;

  int64_t weights() const { return hidden_size * (input_size + output_size); }
};

struct MlpKernels {
  bool low_precision;  // whether kernels compute in float16 and bfloat16; otherwise these are converted to float32
  // Whether the kernels below are faster than torch's products for a network of these sizes.
  bool (*fuses_forward)(const MlpSizes& sizes);
  bool (*fuses_backward)(const MlpSizes& sizes);
  void (*forward)(const MlpForward& job);
  void (*backward)(const MlpBackward& job);
  // relu(x Wᵀ + b) by torch's product: (batch, hidden_size).
  Tensor (*hidden_layer)(const Tensor& x, const Tensor& weights, const OptionalTensor& bias);
  // Modifies grad in place. activated: the hidden layer after relu. Both are (batch, hidden_size) and contiguous.
  void (*relu_backward)(const Tensor& grad, const Tensor& activated);
};

// Whether to use fused kernels, which support at most `most_width` inputs, units and outputs. `wins`: whether they are
// faster. FOURFOLD_GPU_PATH (ops/path.h) can force or forbid them.
bool fuses(const MlpSizes& sizes, int64_t most_width, bool wins);

std::tuple<Tensor, Tensor> mlp(
    const MlpKernels& kernels, const Tensor& x, const Tensor& hidden_weights, const OptionalTensor& hidden_bias,
    const Tensor& output_weights, const OptionalTensor& output_bias, bool save_for_backward);

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> mlp_backward(
    const MlpKernels& kernels, const Tensor& grad, const Tensor& x, const Tensor& hidden_weights,
    const OptionalTensor& hidden_bias, const Tensor& output_weights, const OptionalTensor& output_bias,
    const Tensor& hidden, const std::vector<bool>& output_mask);

}  // namespace fourfold
