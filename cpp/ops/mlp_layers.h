#pragma once

#include <torch/csrc/stable/c/shim.h>

#include <tuple>
#include <vector>

#include "ops/aten.h"
#include "ops/elementwise.h"
#include "ops/mlp_layers_job.h"

namespace fourfold {

struct MlpLayersKernels {
  bool low_precision;  // whether float16 and bfloat16 are computed in as they are; otherwise in float32
  bool keeps_bits;     // whether a relu whose weights' gradients nobody wants is kept as bits
  // Whether a layer is better computed by the kernels below than by torch's product.
  bool (*fuses)(int64_t rows, int64_t input_size, int64_t output_size);
  // Whether the backward of such layers is, for so many rows and weights in all of them.
  bool (*fuses_backward)(int64_t rows, int64_t weights);
  void (*forward)(const LayersForward& job);
  void (*backward)(const LayersBackward& job);
  void (*activate)(Activation activation, const Elementwise& z);
  void (*activate_backward)(Activation activation, const Elementwise& grad_and_kept);
  // relu's values (rows, columns), contiguous, as bits at `step` bytes from row to row, and these as 0 and 1.
  void (*pack_bits)(const Tensor& values, void* bits, int64_t step);
  void (*unpack_bits)(const Tensor& values, const void* bits, int64_t step);
};

std::tuple<Tensor, Tensor> mlp_layers(
    const MlpLayersKernels& kernels, const Tensor& x, const std::vector<Tensor>& weights,
    const std::vector<OptionalTensor>& biases, StringHandle activation, bool save_for_backward, bool need_weights);

std::tuple<Tensor, std::vector<Tensor>, std::vector<Tensor>> mlp_layers_backward(
    const MlpLayersKernels& kernels, const Tensor& grad, const Tensor& x, const std::vector<Tensor>& weights,
    const std::vector<OptionalTensor>& biases, StringHandle activation, const Tensor& kept,
    const std::vector<bool>& output_mask);

}  // namespace fourfold
