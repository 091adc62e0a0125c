#include "ops/softshrink.h"

#include <torch/csrc/stable/library.h>

#include "elementwise.cuh"
#include "math.cuh"
#include "ops/backend.h"

namespace fourfold::gpu {
namespace formulas {
#include "formulas/softshrink.h"
}

namespace {

template <typename V>
struct Forward {
  using Value = V;
  Value lambd;
  FOURFOLD_FN Value operator()(Value x) const { return formulas::softshrink(x, lambd); }
};

template <typename V>
struct Backward {
  using Value = V;
  Value lambd;
  FOURFOLD_FN Value operator()(Value grad, Value x) const { return formulas::softshrink_backward(grad, x, lambd); }
};

void forward(const Elementwise<1>& x, double lambd) {
  visit_floating(x.kind(), [&](auto type) {
    using T = typename decltype(type)::type;
    map<T>(x, Forward<Compute<T>>{static_cast<Compute<T>>(lambd)});
  });
}

void backward(const Elementwise<2>& grad_and_x, double lambd) {
  visit_floating(grad_and_x.kind(), [&](auto type) {
    using T = typename decltype(type)::type;
    map<T>(grad_and_x, Backward<Compute<T>>{static_cast<Compute<T>>(lambd)});
  });
}

constexpr SoftshrinkKernels softshrink_kernels{forward, backward};

}  // namespace
}  // namespace fourfold::gpu

STABLE_TORCH_LIBRARY_IMPL(fourfold, CUDA, m) {
  m.impl("softshrink", FOURFOLD_BOX(softshrink, gpu::softshrink_kernels));
  m.impl("softshrink_backward", FOURFOLD_BOX(softshrink_backward, gpu::softshrink_kernels));
}
