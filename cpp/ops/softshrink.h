#pragma once

#include "ops/elementwise.h"

namespace fourfold {

struct SoftshrinkKernels {
  void (*forward)(const Elementwise<1>& x, double lambd);
  void (*backward)(const Elementwise<2>& grad_and_x, double lambd);
};

Tensor softshrink(const SoftshrinkKernels& kernels, const Tensor& x, double lambd);
Tensor softshrink_backward(const SoftshrinkKernels& kernels, const Tensor& grad, const Tensor& x, double lambd);

}  // namespace fourfold
