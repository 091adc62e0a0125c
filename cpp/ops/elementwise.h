// What elementwise operators share: the tables that backends give them, and how tensors become a kernel's job.
#pragma once

#include <initializer_list>

#include "ops/aten.h"
#include "ops/elementwise_job.h"

namespace fourfold {

struct ElementwiseKernels {
  void (*forward)(const Elementwise& job);
  void (*backward)(const Elementwise& job);  // not to be called for a formula without one
  // Fails for a dtype of results that the device lacks, before torch is asked for memory of it. Null: it has all.
  void (*expect)(Kind kind) = nullptr;
};

// `out` is dense, or has rows whose elements lie side by side. Each input's shape broadcasts to out's; dtypes agree.
Elementwise elementwise(
    const Tensor& out, std::initializer_list<const Tensor*> inputs, std::initializer_list<double> scalars = {});

}  // namespace fourfold
