#pragma once

#include "ops/elementwise.h"

namespace fourfold {

struct SoftshrinkBodies {
  static Tensor forward(const ElementwiseKernels& kernels, const Tensor& x, double lambd);
  static Tensor backward(const ElementwiseKernels& kernels, const Tensor& grad, const Tensor& x, double lambd);
};

}  // namespace fourfold
