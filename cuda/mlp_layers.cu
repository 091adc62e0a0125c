// torch's products for each layer, and the activations between them in one pass each.
#include "ops/mlp_layers.h"

#include "activate.cuh"
#include "ops/backend.h"
#include "ops/registration.h"

namespace fourfold::gpu {
namespace {

template <typename V, typename F>
struct Activate {
  using Value = V;
  FOURFOLD_FN Value operator()(Value z) const { return F::value(z); }
};

template <typename V, typename F>
struct ActivateBackward {
  using Value = V;
  FOURFOLD_FN Value operator()(Value grad, Value kept) const { return F::backward(grad, kept); }
};

template <typename F>
void visit_activation(Activation activation, const F& f) {
  switch (activation) {
    case Activation::relu: return f(formulas::Relu());
    case Activation::tanh: return f(formulas::Tanh());
    case Activation::gelu: return f(formulas::Gelu());
    default: return f(formulas::Silu());
  }
}

}  // namespace

void activate(Activation activation, const Elementwise& z) {
  visit_floating(z.kind, [&](auto type) {
    using T = typename decltype(type)::type;
    visit_activation(activation, [&](auto f) {
      map<T>(z, Activate<Compute<T>, decltype(f)>{}, std::make_index_sequence<1>());
    });
  });
}

void activate_backward(Activation activation, const Elementwise& grad_and_kept) {
  visit_floating(grad_and_kept.kind, [&](auto type) {
    using T = typename decltype(type)::type;
    visit_activation(activation, [&](auto f) {
      map<T>(grad_and_kept, ActivateBackward<Compute<T>, decltype(f)>{}, std::make_index_sequence<2>());
    });
  });
}

namespace {

constexpr MlpLayersKernels mlp_layers_kernels{
    .low_precision = true,
    .keeps_bits = false,
    .fuses = [](int64_t, int64_t, int64_t) { return false; },
    .fuses_backward = [](int64_t, int64_t) { return false; },
    .forward = nullptr,
    .backward = nullptr,
    .activate = activate,
    .activate_backward = activate_backward,
    .pack_bits = nullptr,
    .unpack_bits = nullptr,
};

}  // namespace
}  // namespace fourfold::gpu

FOURFOLD_KERNELS(CUDA, m) {
  m.impl("mlp_layers", FOURFOLD_BOX(mlp_layers, gpu::mlp_layers_kernels));
  m.impl("mlp_layers_backward", FOURFOLD_BOX(mlp_layers_backward, gpu::mlp_layers_kernels));
}
