#include "ops/gru.h"

#include <torch/csrc/stable/library.h>

#include "ops/backend.h"
#include "recurrent.cuh"

namespace fourfold::gpu {
namespace {

constexpr RecurrentKernels gru_kernels = recurrent_kernels<Gru>;

}  // namespace
}  // namespace fourfold::gpu

STABLE_TORCH_LIBRARY_IMPL(fourfold, CUDA, m) {
  m.impl("gru", FOURFOLD_BOX(gru, gpu::gru_kernels));
  m.impl("gru_backward", FOURFOLD_BOX(gru_backward, gpu::gru_kernels));
}
