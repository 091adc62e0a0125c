#include "ops/axpby.h"

#include <torch/csrc/stable/library.h>

#include "cpu/kernels/axpby.h"
#include "cpu/rows.h"
#include "ops/backend.h"

namespace fourfold::cpu {
namespace {

void forward(const Elementwise<2>& x_and_y, double alpha, double beta) {
  for_each_row(x_and_y, [&](int64_t n, void* to, Strided x, Strided y) {
    axpby(x_and_y.kind(), n, to, x, y, alpha, beta);
  });
}

constexpr AxpbyKernels kernels{forward};

}  // namespace
}  // namespace fourfold::cpu

STABLE_TORCH_LIBRARY_IMPL(fourfold, CPU, m) { m.impl("axpby", FOURFOLD_BOX(axpby, cpu::kernels)); }
