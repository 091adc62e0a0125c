// How every kernel is launched: on the tensors' device and torch's current stream there, and what a failure says.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <string>

#include "ops/kind.h"
#include "ops/path.h"

namespace fourfold::gpu {

// Makes a call's device the current one, for torch and for the runtime that is linked in here, which may each keep one of
// their own; and those before it again afterwards.
class DeviceGuard {
 public:
  explicit DeviceGuard(Place place);
  ~DeviceGuard();
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  Place place_;
  int before_ = -1;        // in the runtime that is linked in
  void* guard_ = nullptr;  // torch's; null when the device is torch's current one already
};

// A function that only a GPU build of torch has, or null. Looked up when it is called for, in the library that torch has
// loaded: that library is loaded for torch alone, so that a weak symbol of ours would stay unbound even where it is.
void* in_gpu_torch(const char* name);

// torch's current stream on that device.
cudaStream_t current_stream(Place place);

struct Limits {
  int multiprocessors;
  int shared_bytes;     // the most that a block can ask for
  bool cooperative;     // whether a launch can have all its blocks run at once
  bool tile_products;   // whether it has the instructions of mma.cuh
  std::string target;   // what its run-time compiler is asked for: "cuda sm_90", "hip gfx90a"
};

const Limits& limits(Place place);

// What a block may ask for on every GPU, as on Turing and on AMD's; for more the device has to be asked.
constexpr int64_t least_shared_bytes = 64 * 1024;

// Whether torch's product takes the place of fourfold's own, by the multiply-adds of it.
bool vendor_wins(int64_t work);

// Throws a sentence that says what to change; the error is cleared, so that the next call starts anew.
void check(Place place, cudaError_t code);

struct Grid {
  int64_t blocks;
  int threads;
  int64_t shared_bytes = 0;
};

// Beyond 48 KB of shared memory a kernel has to be told that its blocks may have it.
void allow_shared_memory(Place place, const Grid& grid, const void* kernel);

template <typename... Parameters, typename... Arguments>
void launch(Place place, const Grid& grid, void (*kernel)(Parameters...), const Arguments&... arguments) {
  if (grid.blocks == 0) return;
  const DeviceGuard guard(place);
  const auto shared_bytes = static_cast<size_t>(grid.shared_bytes);
  allow_shared_memory(place, grid, reinterpret_cast<const void*>(kernel));
  kernel<<<dim3(static_cast<unsigned>(grid.blocks)), dim3(static_cast<unsigned>(grid.threads)), shared_bytes,
           current_stream(place)>>>(static_cast<Parameters>(arguments)...);
  check(place, cudaGetLastError());
}

// Whether all blocks of such a launch run at the same time, so that they may wait for each other.
template <typename... Parameters>
bool runs_at_once(Place place, const Grid& grid, void (*kernel)(Parameters...)) {
  if (!limits(place).cooperative || grid.shared_bytes > limits(place).shared_bytes) return false;
  const DeviceGuard guard(place);
  const auto shared_bytes = static_cast<size_t>(grid.shared_bytes);
  allow_shared_memory(place, grid, reinterpret_cast<const void*>(kernel));
  int blocks = 0;
  check(place, cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, grid.threads, shared_bytes));
  return grid.blocks <= int64_t(blocks) * limits(place).multiprocessors;
}

// A launch whose blocks may wait for each other; runs_at_once has said that it can be.
template <typename Parameter>
void launch_at_once(Place place, const Grid& grid, void (*kernel)(Parameter), Parameter argument) {
  const DeviceGuard guard(place);
  void* arguments[] = {&argument};
  check(place, cudaLaunchCooperativeKernel(
                   kernel, dim3(static_cast<unsigned>(grid.blocks)), dim3(static_cast<unsigned>(grid.threads)),
                   arguments, static_cast<unsigned>(grid.shared_bytes), current_stream(place)));
}

// Asynchronous, on the current stream.
void copy(Place place, void* to, const void* from, size_t bytes);
void clear(Place place, void* memory, size_t bytes);

}  // namespace fourfold::gpu
