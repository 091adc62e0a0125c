#include "ops/softshrink.h"

#include <torch/csrc/stable/library.h>

#include "cpu/kernels/softshrink.h"
#include "cpu/rows.h"
#include "ops/backend.h"

namespace fourfold::cpu {
namespace {

void forward(const Elementwise<1>& x, double lambd) {
  for_each_row(x, [&](int64_t n, void* to, Strided from) { softshrink(x.kind(), n, to, from, lambd); });
}

void backward(const Elementwise<2>& grad_and_x, double lambd) {
  for_each_row(grad_and_x, [&](int64_t n, void* to, Strided grad, Strided x) {
    softshrink_backward(grad_and_x.kind(), n, to, grad, x, lambd);
  });
}

constexpr SoftshrinkKernels kernels{forward, backward};

}  // namespace
}  // namespace fourfold::cpu

STABLE_TORCH_LIBRARY_IMPL(fourfold, CPU, m) {
  m.impl("softshrink", FOURFOLD_BOX(softshrink, cpu::kernels));
  m.impl("softshrink_backward", FOURFOLD_BOX(softshrink_backward, cpu::kernels));
}
