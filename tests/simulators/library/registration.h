// Included before every source of the simulated library: its operators are fourfold_simulated::*, and its GPU kernels
// run on CPU tensors. tests/simulated.py registers them for fourfold's own operators.
#pragma once

#include "ops/stable.h"

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

// tests/simulated_programs.py makes programs run on the simulated device. The caller reads their tensors at once.
extern "C" void gpusim_serve_programs(const void* device);
#define FOURFOLD_GRID_DEVICE(type, device) \
  const bool is_served = (gpusim_serve_programs(static_cast<const fourfold::program::GridDevice*>(&device)), true)
