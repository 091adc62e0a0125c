// Shared by elementwise operators: the backends' kernel tables, and the conversion of tensors to a kernel's job.
#pragma once

#include <initializer_list>

#include "ops/aten.h"
#include "ops/elementwise_job.h"

namespace fourfold {

struct ElementwiseKernels {
  void (*forward)(const Elementwise& job);
  void (*backward)(const Elementwise& job);  // must not be called for a formula without a backward
  // Throws for result dtypes that the device doesn't support, before the result is allocated. Null: it supports all.
  void (*expect)(Kind kind) = nullptr;
};

// `out` is dense or has contiguous rows. Each input's shape broadcasts to out's; all dtypes are the same.
Elementwise elementwise(
    const Tensor& out, std::initializer_list<const Tensor*> inputs, std::initializer_list<double> scalars = {});

}  // namespace fourfold
