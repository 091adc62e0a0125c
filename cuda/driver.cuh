// The driver API for kernels that are compiled at run time. NVIDIA's driver is a separate library, which is loaded on
// demand, so that fourfold loads without it; on AMD these functions are in the runtime.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <string>

#include "launch.cuh"
#include "ops/check.h"

#if defined(USE_ROCM)
#define FOURFOLD_DRIVER(name) (&name)
#else
#include "system/system.h"
#define FOURFOLD_DRIVER(name) (fourfold::gpu::in_driver<decltype(name)>(#name))
#endif

namespace fourfold::gpu {

#if defined(USE_ROCM)

inline void check_driver(Place place, cudaError_t code) { check(place, code); }

struct CaptureOfOthers {};

#else

template <typename Function>
Function* in_driver(const char* name) {
  static void* const driver = system::load("libcuda.so.1");
  void* const found = driver == nullptr ? nullptr : system::symbol_in(driver, name);
  if (found == nullptr) fail("fourfold: the driver's library libcuda.so.1 has no ", name, "; install or update the GPU's driver");
  return reinterpret_cast<Function*>(found);
}

inline void check_driver(Place place, CUresult code) {
  if (code == CUDA_SUCCESS) return;
  const char* reason = nullptr;
  FOURFOLD_DRIVER(cuGetErrorString)(code, &reason);
  fail("fourfold: device ", place.index, " reports: ", reason == nullptr ? "an unknown error" : reason,
       " (of this call or an earlier one; CUDA_LAUNCH_BLOCKING=1 tells which)");
}

// While it exists, this thread may load modules although another thread captures a graph.
class CaptureOfOthers {
 public:
  CaptureOfOthers() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  ~CaptureOfOthers() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  CaptureOfOthers(const CaptureOfOthers&) = delete;
  CaptureOfOthers& operator=(const CaptureOfOthers&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

#endif

}  // namespace fourfold::gpu
