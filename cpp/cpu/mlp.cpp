#include "ops/mlp.h"

#include <torch/csrc/stable/library.h>

#include "cpu/dense.h"
#include "cpu/kernels/mlp.h"
#include "cpu/rows.h"
#include "ops/backend.h"

namespace fourfold::cpu {
namespace {

bool fuses_forward(const MlpSizes& sizes) {
  return fuses_layer(sizes.batch, sizes.input_size, sizes.hidden_size) &&
         fuses_layer(sizes.batch, sizes.hidden_size, sizes.output_size);
}

bool fuses_backward(const MlpSizes& sizes) {
  return fuses_forward(sizes) && fuses_backward_of(sizes.batch, sizes.weights());
}

template <typename T>
T* at_element(T* data, int64_t k, Kind kind) {
  using Byte = std::conditional_t<std::is_const_v<T>, const char, char>;
  return data == nullptr ? nullptr : static_cast<Byte*>(data) + k * (kind == Kind::float64 ? 8 : 4);
}

Tensor hidden_layer(const Tensor& x, const Tensor& weights, const OptionalTensor& bias) {
  const Tensor hidden = linear(x, weights, bias);
  const Kind kind = kind_of(hidden.scalar_type());
  void* data = out_data(hidden);
  parallel(hidden.numel(), elementwise_grain, [&](int64_t begin, int64_t end) {
    relu(kind, end - begin, at_element(data, begin, kind));
  });
  return hidden;
}

void hidden_gradient(const Tensor& grad, const Tensor& activated) {
  const Kind kind = kind_of(grad.scalar_type());
  void* to = out_data(grad);
  const void* from = data_of(activated);
  parallel(grad.numel(), elementwise_grain, [&](int64_t begin, int64_t end) {
    relu_backward(kind, end - begin, at_element(to, begin, kind), at_element(from, begin, kind));
  });
}

constexpr MlpKernels kernels{
    .low_precision = false,
    .fuses_forward = fuses_forward,
    .fuses_backward = fuses_backward,
    .forward = [](const MlpForward& job) { mlp(job); },
    .backward = [](const MlpBackward& job) { mlp_backward(job); },
    .hidden_layer = hidden_layer,
    .relu_backward = hidden_gradient,
};

}  // namespace
}  // namespace fourfold::cpu

STABLE_TORCH_LIBRARY_IMPL(fourfold, CPU, m) {
  m.impl("mlp", FOURFOLD_BOX(mlp, cpu::kernels));
  m.impl("mlp_backward", FOURFOLD_BOX(mlp_backward, cpu::kernels));
}
