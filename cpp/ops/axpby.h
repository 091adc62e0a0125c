#pragma once

#include "ops/elementwise.h"

namespace fourfold {

struct AxpbyKernels {
  // In an integer type alpha and beta are whole numbers.
  void (*forward)(const Elementwise<2>& x_and_y, double alpha, double beta);
};

Tensor axpby(
    const AxpbyKernels& kernels, const Tensor& x, const Tensor& y, double alpha, double beta,
    std::optional<ScalarType> dtype);

}  // namespace fourfold
