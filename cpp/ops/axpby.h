#pragma once

#include "ops/elementwise.h"

namespace fourfold {

struct AxpbyBodies {
  static Tensor forward(
      const ElementwiseKernels& kernels, const Tensor& x, const Tensor& y, double alpha, double beta,
      std::optional<ScalarType> dtype);
};

}  // namespace fourfold
