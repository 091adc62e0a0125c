#include "ops/lstm.h"

#include "ops/backend.h"
#include "ops/registration.h"
#include "recurrent.cuh"

namespace fourfold::gpu {
namespace {

constexpr RecurrentKernels lstm_kernels = recurrent_kernels<Lstm>;

}  // namespace
}  // namespace fourfold::gpu

FOURFOLD_KERNELS(CUDA, m) {
  m.impl("lstm", FOURFOLD_BOX(lstm, gpu::lstm_kernels));
  m.impl("lstm_backward", FOURFOLD_BOX(lstm_backward, gpu::lstm_kernels));
}
