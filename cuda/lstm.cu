#include "ops/lstm.h"

#include <torch/csrc/stable/library.h>

#include "ops/backend.h"
#include "recurrent.cuh"

namespace fourfold::gpu {
namespace {

constexpr RecurrentKernels lstm_kernels = recurrent_kernels<Lstm>;

}  // namespace
}  // namespace fourfold::gpu

STABLE_TORCH_LIBRARY_IMPL(fourfold, CUDA, m) {
  m.impl("lstm", FOURFOLD_BOX(lstm, gpu::lstm_kernels));
  m.impl("lstm_backward", FOURFOLD_BOX(lstm_backward, gpu::lstm_kernels));
}
