// torch's products for each layer, and the activations between them in one pass each.
#include "ops/mlp_layers.h"

#include "mlp_layers.h"
#include "ops/backend.h"
#include "ops/registration.h"

namespace fourfold::mps {

extern const Source mlp_layers_shaders;

namespace {

Formula formula_of(Activation activation) {
  switch (activation) {
    case Activation::relu: return {mlp_layers_shaders, "Activate<Relu>", false, 0};
    case Activation::tanh: return {mlp_layers_shaders, "Activate<Tanh>", false, 0};
    case Activation::gelu: return {mlp_layers_shaders, "Activate<Gelu>", false, 0};
    default: return {mlp_layers_shaders, "Activate<Silu>", false, 0};
  }
}

constexpr const char* own_label = "fourfold::mlp_layers";

}  // namespace

void activate(const char* label, Activation activation, const Elementwise& z) {
  map(label, z, formula_of(activation), "Forward");
}

void activate_backward(const char* label, Activation activation, const Elementwise& grad_and_kept) {
  map(label, grad_and_kept, formula_of(activation), "Backward");
}

namespace {

constexpr MlpLayersKernels mlp_layers_kernels{
    .low_precision = true,
    .keeps_bits = false,
    .fuses = [](int64_t, int64_t, int64_t) { return false; },
    .fuses_backward = [](int64_t, int64_t) { return false; },
    .forward = nullptr,
    .backward = nullptr,
    .activate = [](Activation activation, const Elementwise& z) { activate(own_label, activation, z); },
    .activate_backward =
        [](Activation activation, const Elementwise& grad_and_kept) {
          activate_backward(own_label, activation, grad_and_kept);
        },
    .pack_bits = nullptr,
    .unpack_bits = nullptr,
};

}  // namespace
}  // namespace fourfold::mps

FOURFOLD_KERNELS(MPS, m) {
  m.impl("mlp_layers", FOURFOLD_BOX(mlp_layers, mps::mlp_layers_kernels));
  m.impl("mlp_layers_backward", FOURFOLD_BOX(mlp_layers_backward, mps::mlp_layers_kernels));
}
