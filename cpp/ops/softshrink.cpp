#include "ops/softshrink.h"

#include "ops/registration.h"

#include <algorithm>

namespace fourfold {
namespace {

void check_softshrink(const char* op, const Tensor& x, double lambd) {
  expect_floating(op, "x", x);
  if (!(lambd >= 0)) fail(op, ": expected lambd to be at least 0, but got ", lambd);
}

}  // namespace

Tensor SoftshrinkBodies::forward(const ElementwiseKernels& kernels, const Tensor& x, double lambd) {
  check_softshrink("softshrink", x, lambd);
  Tensor out = empty_like(x, x.scalar_type());
  kernels.forward(elementwise(out, {&x}, {lambd}));
  return out;
}

Tensor SoftshrinkBodies::backward(
    const ElementwiseKernels& kernels, const Tensor& grad, const Tensor& x, double lambd) {
  const char* op = "softshrink_backward";
  check_softshrink(op, x, lambd);
  expect_dtype(op, "grad", grad, x.scalar_type());
  if (grad.dim() != x.dim() || !std::equal(x.sizes().begin(), x.sizes().end(), grad.sizes().begin())) {
    fail(op, ": expected grad to have x's shape ", shape_of(x), ", but got ", shape_of(grad));
  }
  expect_place(op, {{"x", &x}, {"grad", &grad}});
  Tensor out = empty_like(x, x.scalar_type());
  kernels.backward(elementwise(out, {&grad, &x}, {lambd}));
  return out;
}

}  // namespace fourfold

FOURFOLD_OPERATORS(m) {
  m.def("softshrink(Tensor x, float lambd=0.5) -> Tensor");
  m.def("softshrink_backward(Tensor grad, Tensor x, float lambd) -> Tensor grad_x");
}
