#include "ops/lltm.h"

#include "ops/backend.h"
#include "ops/registration.h"
#include "recurrent.cuh"

namespace fourfold::gpu {
namespace {

constexpr RecurrentKernels lltm_kernels = recurrent_kernels<Lltm>;

}  // namespace
}  // namespace fourfold::gpu

FOURFOLD_KERNELS(CUDA, m) {
  m.impl("lltm", FOURFOLD_BOX(lltm, gpu::lltm_kernels));
  m.impl("lltm_backward", FOURFOLD_BOX(lltm_backward, gpu::lltm_kernels));
}
