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
  bool low_precision;  // whether float16 and bfloat16 are computed in as they are; otherwise in float32
  // Whether a network of these sizes is better computed by the kernels below than by torch's products.
  bool (*fuses_forward)(const MlpSizes& sizes);
  bool (*fuses_backward)(const MlpSizes& sizes);
  void (*forward)(const MlpForward& job);
  void (*backward)(const MlpBackward& job);
  // relu(x Wᵀ + b) by torch's product: (batch, hidden_size).
  Tensor (*hidden_layer)(const Tensor& x, const Tensor& weights, const OptionalTensor& bias);
  // grad in place, from the activated hidden layer, both (batch, hidden_size) and contiguous.
  void (*relu_backward)(const Tensor& grad, const Tensor& activated);
};

// Whether kernels for at most `most_width` inputs, units and outputs take a network, where `wins` says whether they are to
// be chosen: FOURFOLD_GPU_PATH (ops/path.h) may demand it, or forbid it.
bool fuses(const MlpSizes& sizes, int64_t most_width, bool wins);

std::tuple<Tensor, Tensor> mlp(
    const MlpKernels& kernels, const Tensor& x, const Tensor& hidden_weights, const OptionalTensor& hidden_bias,
    const Tensor& output_weights, const OptionalTensor& output_bias, bool save_for_backward);

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> mlp_backward(
    const MlpKernels& kernels, const Tensor& grad, const Tensor& x, const Tensor& hidden_weights,
    const OptionalTensor& hidden_bias, const Tensor& output_weights, const OptionalTensor& output_bias,
    const Tensor& hidden, const std::vector<bool>& output_mask);

}  // namespace fourfold
