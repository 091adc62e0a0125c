// Included before every source of the simulated library: its operators are fourfold_simulated::*, and the GPU's kernels
// serve the tensors of the CPU. Whoever loads it gives them to fourfold's own operators (tests/simulated.py).
#pragma once

#include <torch/csrc/stable/library.h>

namespace fourfold {

// It is loaded beside libfourfold.
inline const char* other_copy_error() { return nullptr; }

}  // namespace fourfold

#undef STABLE_TORCH_LIBRARY_FRAGMENT
#undef STABLE_TORCH_LIBRARY_IMPL
#define STABLE_TORCH_LIBRARY_FRAGMENT(ns, m) _STABLE_TORCH_LIBRARY_FRAGMENT(fourfold_simulated, m, C10_UID)
#define STABLE_TORCH_LIBRARY_IMPL(ns, key, m) FOURFOLD_SIMULATED_##key(m)
#define FOURFOLD_SIMULATED_CUDA(m) _STABLE_TORCH_LIBRARY_IMPL(fourfold_simulated, CPU, m, C10_UID)
#define FOURFOLD_SIMULATED_MPS(m) _STABLE_TORCH_LIBRARY_IMPL(fourfold_simulated, CPU, m, C10_UID)

// Programs run on the simulated device, which tests/simulated_programs.py asks for. The caller has their tensors in hand.
extern "C" void gpusim_serve_programs(const void* device);
#define FOURFOLD_GRID_DEVICE(type, device) \
  const bool is_served = (gpusim_serve_programs(static_cast<const fourfold::program::GridDevice*>(&device)), true)
