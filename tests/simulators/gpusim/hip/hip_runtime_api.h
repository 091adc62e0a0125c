// The part of HIP's host interface for devices and their limits, kernels and launches.
#pragma once

#include "../launch.h"

#pragma GCC visibility push(hidden)

enum hipFuncAttribute {
  hipFuncAttributeMaxDynamicSharedMemorySize = 8,
  hipFuncAttributePreferredSharedMemoryCarveout = 9,
};

struct hipFuncAttributes {
  size_t sharedSizeBytes, constSizeBytes, localSizeBytes;
  int maxThreadsPerBlock, numRegs, maxDynamicSharedSizeBytes, binaryVersion, ptxVersion;
};

enum hipDeviceAttribute_t {
  hipDeviceAttributeMultiprocessorCount,
  hipDeviceAttributeMaxSharedMemoryPerBlock,
  hipDeviceAttributeSharedMemPerBlockOptin,
  hipDeviceAttributeMaxSharedMemoryPerMultiprocessor,
  hipDeviceAttributeWarpSize,
  hipDeviceAttributeCooperativeLaunch,
  hipDeviceAttributeComputeCapabilityMajor,
  hipDeviceAttributeComputeCapabilityMinor,
  hipDeviceAttributeMaxThreadsPerBlock,
  hipDeviceAttributeMaxThreadsPerMultiProcessor,
  hipDeviceAttributeMaxBlocksPerMultiProcessor,
  hipDeviceAttributeMaxRegistersPerBlock,
  hipDeviceAttributeMaxBlockDimX,
  hipDeviceAttributeMaxBlockDimY,
  hipDeviceAttributeMaxBlockDimZ,
  hipDeviceAttributeMaxGridDimX,
  hipDeviceAttributeMaxGridDimY,
  hipDeviceAttributeMaxGridDimZ,
  hipDeviceAttributeL2CacheSize,
};

struct hipDeviceProp_t {
  char name[256], gcnArchName[256];
  size_t totalGlobalMem, sharedMemPerBlock, sharedMemPerBlockOptin, maxSharedMemoryPerMultiProcessor;
  int regsPerBlock, warpSize, maxThreadsPerBlock, maxThreadsDim[3], maxGridSize[3], multiProcessorCount;
  int maxThreadsPerMultiProcessor, major, minor, cooperativeLaunch, l2CacheSize;
};

inline hipError_t hipGetDeviceCount(int* count) {
  *count = static_cast<int>(gpusim::device_count());
  return hipSuccess;
}

inline hipError_t hipGetDevice(int* device) {
  *device = static_cast<int>(gpusim::current_device);
  return hipSuccess;
}

namespace gpusim {
inline bool is_device(int device) { return device >= 0 && device < static_cast<int>(device_count()); }
}  // namespace gpusim

inline hipError_t hipSetDevice(int device) {
  if (!gpusim::is_device(device)) return gpusim::noted(hipErrorInvalidDevice);
  gpusim::current_device = static_cast<unsigned>(device);
  return hipSuccess;
}

inline hipError_t hipDeviceGetAttribute(int* value, hipDeviceAttribute_t attribute, int device) {
  if (!gpusim::is_device(device)) return gpusim::noted(hipErrorInvalidDevice);
  const gpusim::Device it;
  const auto number = [&]() -> size_t {
    switch (attribute) {
      case hipDeviceAttributeMultiprocessorCount: return it.multiprocessors;
      // hipify translates CUDA's opt-in limit to this name.
      case hipDeviceAttributeMaxSharedMemoryPerBlock:
      case hipDeviceAttributeSharedMemPerBlockOptin: return it.shared_optin;
      case hipDeviceAttributeMaxSharedMemoryPerMultiprocessor: return it.shared_per_multiprocessor;
      case hipDeviceAttributeWarpSize: return gpusim::warp_width;
      case hipDeviceAttributeCooperativeLaunch: return 1;
      case hipDeviceAttributeComputeCapabilityMajor: return static_cast<size_t>(it.kind.major);
      case hipDeviceAttributeComputeCapabilityMinor: return static_cast<size_t>(it.kind.minor);
      case hipDeviceAttributeMaxThreadsPerBlock: return it.threads_per_block;
      case hipDeviceAttributeMaxThreadsPerMultiProcessor: return it.threads_per_multiprocessor;
      case hipDeviceAttributeMaxBlocksPerMultiProcessor: return it.blocks_per_multiprocessor;
      case hipDeviceAttributeMaxRegistersPerBlock: return it.registers_per_multiprocessor;
      case hipDeviceAttributeMaxBlockDimX: return it.block_limit[0];
      case hipDeviceAttributeMaxBlockDimY: return it.block_limit[1];
      case hipDeviceAttributeMaxBlockDimZ: return it.block_limit[2];
      case hipDeviceAttributeMaxGridDimX: return it.grid_limit[0];
      case hipDeviceAttributeMaxGridDimY: return it.grid_limit[1];
      case hipDeviceAttributeMaxGridDimZ: return it.grid_limit[2];
      case hipDeviceAttributeL2CacheSize: return 4 << 20;
    }
    return 0;
  };
  *value = static_cast<int>(number());
  return hipSuccess;
}

inline hipError_t hipGetDeviceProperties(hipDeviceProp_t* properties, int device) {
  if (!gpusim::is_device(device)) return gpusim::noted(hipErrorInvalidDevice);
  const gpusim::Device it;
  *properties = {};
  std::snprintf(properties->name, sizeof(properties->name), "simulated GPU with warps of %u", gpusim::warp_width);
  std::snprintf(properties->gcnArchName, sizeof(properties->gcnArchName), "gpusim%u", gpusim::warp_width);
  properties->totalGlobalMem = size_t{8} << 30;
  properties->sharedMemPerBlock = it.shared_default;
  properties->sharedMemPerBlockOptin = it.shared_optin;
  properties->maxSharedMemoryPerMultiProcessor = it.shared_per_multiprocessor;
  properties->regsPerBlock = static_cast<int>(it.registers_per_multiprocessor);
  properties->warpSize = gpusim::warp_width;
  properties->maxThreadsPerBlock = static_cast<int>(it.threads_per_block);
  for (int k = 0; k < 3; ++k) {
    properties->maxThreadsDim[k] = static_cast<int>(it.block_limit[k]);
    properties->maxGridSize[k] = static_cast<int>(it.grid_limit[k]);
  }
  properties->multiProcessorCount = static_cast<int>(it.multiprocessors);
  properties->maxThreadsPerMultiProcessor = static_cast<int>(it.threads_per_multiprocessor);
  properties->major = it.kind.major;
  properties->minor = it.kind.minor;
  properties->cooperativeLaunch = 1;
  properties->l2CacheSize = 4 << 20;
  return hipSuccess;
}

inline hipError_t hipDriverGetVersion(int* version) {
  *version = 60300000;
  return hipSuccess;
}

inline hipError_t hipRuntimeGetVersion(int* version) { return hipDriverGetVersion(version); }

inline hipError_t hipFuncSetAttribute(const void* kernel, hipFuncAttribute attribute, int value) {
  if (attribute != hipFuncAttributeMaxDynamicSharedMemorySize) return hipSuccess;
  if (kernel == nullptr) return gpusim::noted(hipErrorInvalidDeviceFunction);
  const size_t most = gpusim::Device().shared_optin;
  if (value < 0 || static_cast<size_t>(value) > most) return gpusim::noted(hipErrorInvalidValue);
  const std::lock_guard lock(gpusim::function_mutex);
  gpusim::function_shared_limit[kernel] = static_cast<size_t>(value);
  return hipSuccess;
}

template <typename... P>
hipError_t hipFuncSetAttribute(void (*kernel)(P...), hipFuncAttribute attribute, int value) {
  return hipFuncSetAttribute(reinterpret_cast<const void*>(kernel), attribute, value);
}

inline hipError_t hipFuncGetAttributes(hipFuncAttributes* attributes, const void* kernel) {
  if (kernel == nullptr) return gpusim::noted(hipErrorInvalidDeviceFunction);
  *attributes = {};
  const unsigned threads = gpusim::Device().threads_per_block;
  attributes->maxThreadsPerBlock = static_cast<int>(threads);
  attributes->numRegs = static_cast<int>(gpusim::registers_of(kernel, threads));
  attributes->maxDynamicSharedSizeBytes = static_cast<int>(gpusim::shared_limit(kernel));
  const gpusim::Capability& kind = gpusim::capability();
  attributes->binaryVersion = attributes->ptxVersion = kind.major * 10 + kind.minor;
  return hipSuccess;
}

template <typename... P>
hipError_t hipFuncGetAttributes(hipFuncAttributes* attributes, void (*kernel)(P...)) {
  return hipFuncGetAttributes(attributes, reinterpret_cast<const void*>(kernel));
}

template <typename Kernel>
hipError_t hipOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, Kernel kernel, int threads, size_t shared_bytes) {
  if (threads <= 0) return gpusim::noted(hipErrorInvalidValue);
  *blocks = static_cast<int>(gpusim::resident_blocks_per_multiprocessor(
      reinterpret_cast<const void*>(kernel), static_cast<unsigned>(threads), shared_bytes));
  return hipSuccess;
}

// The kernel keeps its type here, from which the simulator gets the types of the arguments.
template <typename... P>
hipError_t hipLaunchKernel(void (*kernel)(P...), dim3 grid, dim3 block, void** arguments, size_t shared_bytes,
                           hipStream_t stream) {
  return gpusim::launch<P...>(kernel, grid, block, shared_bytes, false, stream,
                              gpusim::unpack(kernel, arguments, std::index_sequence_for<P...>()));
}

template <typename... P>
hipError_t hipLaunchCooperativeKernel(void (*kernel)(P...), dim3 grid, dim3 block, void** arguments,
                                      unsigned shared_bytes, hipStream_t stream) {
  return gpusim::launch<P...>(kernel, grid, block, shared_bytes, true, stream,
                              gpusim::unpack(kernel, arguments, std::index_sequence_for<P...>()));
}

// A launch by name; hipGetLastError returns its error.
template <typename... P, typename... A>
void gpusim_launch_by_name(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared_bytes, hipStream_t stream,
                           const A&... arguments) {
  static_assert(sizeof...(P) == sizeof...(A), "gpusim: a launch with more or fewer arguments than the kernel takes");
  gpusim::launch<P...>(kernel, grid, block, shared_bytes, false, stream, {static_cast<P>(arguments)...});
}
#define hipLaunchKernelGGL(...) gpusim_launch_by_name(__VA_ARGS__)

#pragma GCC visibility pop

#include "hip_memory_api.h"
#include "hip_module_api.h"
