#include "ops/mlp.h"

#include "cpu/activate.h"
#include "cpu/dense.h"
#include "cpu/kernels/mlp.h"
#include "ops/backend.h"
#include "ops/elementwise.h"
#include "ops/registration.h"

namespace fourfold::cpu {
namespace {

bool fuses_forward(const MlpSizes& sizes) {
  return fuses_layer(sizes.batch, sizes.input_size, sizes.hidden_size) &&
         fuses_layer(sizes.batch, sizes.hidden_size, sizes.output_size);
}

bool fuses_backward(const MlpSizes& sizes) {
  return fuses_forward(sizes) && fuses_backward_of(sizes.batch, sizes.weights());
}

Tensor hidden_layer(const Tensor& x, const Tensor& weights, const OptionalTensor& bias) {
  const Tensor hidden = linear(x, weights, bias);
  activate_all(Activation::relu, elementwise(hidden, {&hidden}));
  return hidden;
}

void hidden_gradient(const Tensor& grad, const Tensor& activated) {
  differentiate_all(Activation::relu, elementwise(grad, {&grad, &activated}));
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

FOURFOLD_KERNELS(CPU, m) {
  m.impl("mlp", FOURFOLD_BOX(mlp, cpu::kernels));
  m.impl("mlp_backward", FOURFOLD_BOX(mlp_backward, cpu::kernels));
}
