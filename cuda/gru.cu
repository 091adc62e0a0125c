#include "ops/gru.h"

#include "ops/backend.h"
#include "ops/registration.h"
#include "recurrent.cuh"

namespace fourfold::gpu {
namespace {

constexpr RecurrentKernels gru_kernels = recurrent_kernels<Gru>;

}  // namespace
}  // namespace fourfold::gpu

FOURFOLD_KERNELS(CUDA, m) {
  m.impl("gru", FOURFOLD_BOX(gru, gpu::gru_kernels));
  m.impl("gru_backward", FOURFOLD_BOX(gru_backward, gpu::gru_kernels));
}
