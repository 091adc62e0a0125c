#include "ops/lltm.h"

#include <torch/csrc/stable/library.h>

#include "ops/backend.h"
#include "recurrent.cuh"

namespace fourfold::gpu {
namespace {

constexpr RecurrentKernels lltm_kernels = recurrent_kernels<Lltm>;

}  // namespace
}  // namespace fourfold::gpu

STABLE_TORCH_LIBRARY_IMPL(fourfold, CUDA, m) {
  m.impl("lltm", FOURFOLD_BOX(lltm, gpu::lltm_kernels));
  m.impl("lltm_backward", FOURFOLD_BOX(lltm_backward, gpu::lltm_kernels));
}
