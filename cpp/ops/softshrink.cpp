#include "cpu/softshrink.h"

#include <torch/csrc/stable/library.h>

#include "ops/elementwise.h"

namespace fourfold {
namespace {

void check_softshrink(const char* op, const Tensor& x, double lambd) {
  expect_floating(op, "x", x);
  if (!(lambd >= 0)) fail(op, ": expected lambd to be at least 0, but got ", lambd);
}

Tensor softshrink(const Tensor& x, double lambd) {
  check_softshrink("softshrink", x, lambd);
  Tensor out = empty_like(x, x.scalar_type());
  const cpu::Kind kind = kind_of(x.scalar_type());
  Elementwise<1>(out, {&x}).run(
      [&](int64_t n, void* to, cpu::Strided from) { cpu::softshrink(kind, n, to, from, lambd); });
  return out;
}

Tensor softshrink_backward(const Tensor& grad, const Tensor& x, double lambd) {
  const char* op = "softshrink_backward";
  check_softshrink(op, x, lambd);
  expect_dtype(op, "grad", grad, x.scalar_type());
  if (grad.dim() != x.dim() || !std::equal(x.sizes().begin(), x.sizes().end(), grad.sizes().begin())) {
    fail(op, ": expected grad to have x's shape ", shape_of(x), ", but got ", shape_of(grad));
  }
  Tensor out = empty_like(x, x.scalar_type());
  const cpu::Kind kind = kind_of(x.scalar_type());
  Elementwise<2>(out, {&grad, &x}).run([&](int64_t n, void* to, cpu::Strided g, cpu::Strided from) {
    cpu::softshrink_backward(kind, n, to, g, from, lambd);
  });
  return out;
}

}  // namespace
}  // namespace fourfold

STABLE_TORCH_LIBRARY_FRAGMENT(fourfold, m) {
  m.def("softshrink(Tensor x, float lambd=0.5) -> Tensor");
  m.def("softshrink_backward(Tensor grad, Tensor x, float lambd) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(fourfold, CPU, m) {
  m.impl("softshrink", TORCH_BOX(&fourfold::softshrink));
  m.impl("softshrink_backward", TORCH_BOX(&fourfold::softshrink_backward));
}
