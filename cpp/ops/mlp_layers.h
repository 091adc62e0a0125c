#pragma once

#include <torch/csrc/stable/c/shim.h>

#include <tuple>
#include <vector>

#include "ops/aten.h"
#include "ops/elementwise.h"
#include "ops/mlp_layers_job.h"

namespace fourfold {

struct MlpLayersKernels {
  bool low_precision;  // whether kernels compute in float16 and bfloat16; otherwise these are converted to float32
  bool keeps_bits;     // whether relu is saved as bits if no gradients of weights are needed
  // Whether the kernels below are faster than torch's product for a layer.
  bool (*fuses)(int64_t rows, int64_t input_size, int64_t output_size);
  // Likewise for the backward of such layers. weights: the number of elements of all weights.
  bool (*fuses_backward)(int64_t rows, int64_t weights);
  void (*forward)(const LayersForward& job);
  void (*backward)(const LayersBackward& job);
  void (*activate)(Activation activation, const Elementwise& z);
  void (*activate_backward)(Activation activation, const Elementwise& grad_and_kept);
  // Pack relu's contiguous values (rows, columns) to bits, with `step` bytes from row to row; unpack the bits to 0 and
  // 1.
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
