// Kernel launches, on the tensors' device and torch's current stream, with error messages.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <string>

#include "ops/kind.h"
#include "ops/path.h"

namespace fourfold::gpu {

// Makes a call's device the current one, both for torch and for the statically linked runtime, which may have separate
// current devices. Restores both afterwards.
class DeviceGuard {
 public:
  explicit DeviceGuard(Place place);
  ~DeviceGuard();
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  Place place_;
  int before_ = -1;        // the previous device of the statically linked runtime
  void* guard_ = nullptr;  // torch's guard; null if the device is already torch's current one
};

// A function that only GPU builds of torch have, or null. It is looked up at run time in the library that torch has
// loaded: that library has local scope, so a weak symbol would stay unbound.
void* in_gpu_torch(const char* name);

// torch's current stream on that device.
cudaStream_t current_stream(Place place);

struct Limits {
  int multiprocessors;
  int shared_bytes;     // the maximum for a block
  bool cooperative;     // whether it supports cooperative launches
  bool tile_products;   // whether it has the instructions of mma.cuh
  std::string target;   // the target of its run-time compiler: "cuda sm_90", "hip gfx90a"
};

const Limits& limits(Place place);

// The shared memory of a block on every GPU (Turing and AMD have no more).
constexpr int64_t least_shared_bytes = 64 * 1024;

// Whether to use torch's product instead of fourfold's own, by its number of multiply-adds or by its depth.
bool vendor_wins(int64_t work);
bool vendor_wins_in_depth(int64_t depth);

// Throws an error that says what to change, and clears the runtime's error state for the next call.
void check(Place place, cudaError_t code);

struct Grid {
  int64_t blocks;
  int threads;
  int64_t shared_bytes = 0;
};

// Sets the kernel attribute that is required for more than 48 KB of shared memory.
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

// The number of blocks of such a launch that can run at the same time, so that they may wait for each other.
template <typename... Parameters>
int64_t blocks_at_once(Place place, const Grid& grid, void (*kernel)(Parameters...)) {
  if (!limits(place).cooperative || grid.shared_bytes > limits(place).shared_bytes) return 0;
  const DeviceGuard guard(place);
  const auto shared_bytes = static_cast<size_t>(grid.shared_bytes);
  allow_shared_memory(place, grid, reinterpret_cast<const void*>(kernel));
  int blocks = 0;
  check(place, cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, grid.threads, shared_bytes));
  return int64_t(blocks) * limits(place).multiprocessors;
}

// A cooperative launch, whose blocks may wait for each other; grid.blocks must not exceed blocks_at_once().
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
void fill(Place place, void* memory, int byte, size_t bytes);

}  // namespace fourfold::gpu
