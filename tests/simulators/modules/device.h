// Included before a source that is compiled for the simulator at run time: HIP's keywords and functions for kernels,
// implemented by the services of the simulated library, which runs them.
#pragma once

#include <cmath>
#include <cstring>

#include "services.h"

#define GPUSIM 1
#define USE_ROCM 1

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...) __attribute__((visibility("default")))
#define HIP_DYNAMIC_SHARED(T, name) T* name = static_cast<T*>(gpusim_service_shared());

struct float4 {
  float x, y, z, w;
};

#define threadIdx (gpusim_service_position().thread)
#define blockIdx (gpusim_service_position().block)
#define blockDim (gpusim_service_position().block_size)
#define gridDim (gpusim_service_position().blocks)

inline void __syncthreads(std::source_location site = std::source_location::current()) { gpusim_service_barrier(site); }
inline void __builtin_amdgcn_wave_barrier(std::source_location site = std::source_location::current()) {
  gpusim_service_exchange("__syncwarp", nullptr, 0, true, nullptr, site);
}

template <typename T>
T gpusim_shuffled(const char* operation, T value, unsigned from, std::source_location site) {
  T of_lanes[64];
  gpusim_service_exchange(operation, &value, sizeof value, false, of_lanes, site);
  return of_lanes[from];
}

template <typename T>
T __shfl(T value, int lane, int width, std::source_location site = std::source_location::current()) {
  const unsigned group = gpusim_service_lane() & ~static_cast<unsigned>(width - 1);
  return gpusim_shuffled("__shfl", value, group + (static_cast<unsigned>(lane) & (width - 1)), site);
}

template <typename T>
T __shfl_xor(T value, int bits, int width, std::source_location site = std::source_location::current()) {
  const unsigned lane = gpusim_service_lane(), to = lane ^ static_cast<unsigned>(bits);
  const unsigned end = (lane & ~static_cast<unsigned>(width - 1)) + width;
  return gpusim_shuffled("__shfl_xor", value, to >= end ? lane : to, site);
}

inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline double rsqrt(double x) { return 1.0 / sqrt(x); }
