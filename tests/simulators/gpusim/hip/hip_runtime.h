// The header that hipified sources include: qualifiers, built-in variables, device functions and the host interface,
// for g++.
#pragma once

// The sources are compiled as for ROCm. __HIPCC__ and __CUDACC__ stay undefined, so that torch's Half and BFloat16 use
// their host code.
#ifndef USE_ROCM
#define USE_ROCM 1
#endif
#ifndef __HIP_PLATFORM_AMD__
#define __HIP_PLATFORM_AMD__ 1
#endif

#include "hip_runtime_api.h"

#define __global__
#define __device__
#define __host__
#define __constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))

#define __shared__ \
  static_assert(false, "gpusim: static __shared__ variables are not modelled; use HIP_DYNAMIC_SHARED");
#define HIP_DYNAMIC_SHARED(T, name) T* name = gpusim::SharedMemory();
#define HIP_KERNEL_NAME(...) __VA_ARGS__

#define threadIdx (gpusim::thread_index())
#define blockIdx (gpusim::block_index())
#define blockDim (gpusim::block_size())
#define gridDim (gpusim::grid_size())

#pragma GCC visibility push(hidden)

namespace gpusim {
GPUSIM_NOT_CHECKED inline uint3 thread_index() { return current->index; }
GPUSIM_NOT_CHECKED inline dim3 block_index() { return current->block->index; }
GPUSIM_NOT_CHECKED inline dim3 block_size() { return current->block->launch->block; }
GPUSIM_NOT_CHECKED inline dim3 grid_size() { return current->block->launch->grid; }
}  // namespace gpusim

// Not a constant expression, as in CUDA and in ROCm from version 7.
inline const int warpSize = static_cast<int>(gpusim::warp_width);

#pragma GCC visibility pop

#include "../atomics.h"
#include "../device_functions.h"
