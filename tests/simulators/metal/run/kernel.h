// What a kernel that is compiled for the simulator, and the simulator, know of each other.
#pragma once

#include <cstddef>
#include <source_location>

#define GPUSIM_METAL_EXPORTED __attribute__((visibility("default")))

GPUSIM_METAL_EXPORTED void gpusim_metal_barrier(std::source_location site);
// What every lane of the simdgroup offers, into `of_lane`; the lanes that came, as bits.
GPUSIM_METAL_EXPORTED unsigned gpusim_metal_exchange(
    const char* operation, const void* mine, std::size_t bytes, void* of_lane, std::source_location site);
GPUSIM_METAL_EXPORTED unsigned gpusim_metal_lane();
[[noreturn]] GPUSIM_METAL_EXPORTED void gpusim_metal_fail(const char* operation, std::source_location site);

// Where a thread is.
struct GpusimMetalPosition {
  unsigned grid[3];         // of the thread
  unsigned group[3];        // of its threadgroup
  unsigned groups[3];       // how many there are
  unsigned index_in_group;
  unsigned lane;
  unsigned simdgroup;
};

GPUSIM_METAL_EXPORTED GpusimMetalPosition gpusim_metal_position();
GPUSIM_METAL_EXPORTED void* gpusim_metal_threadgroup_memory();

enum class GpusimMetalWhat { buffer, group_memory, position };

// What a kernel's parameter is told: for a buffer its index, and what is known of what it points to.
struct GpusimMetalParameter {
  GpusimMetalWhat what;
  unsigned index;
  bool one;  // a reference: so many bytes are read
  std::size_t bytes;
  std::size_t alignment;
};

// A library has all of its kernels as gpusim_metal_kernels, up to one without a name.
struct GpusimMetalKernel {
  const char* name;
  const void* function;
  unsigned most_threads;  // of a threadgroup
  unsigned parameters;
  const GpusimMetalParameter* parameter;
  void (*call)(void* const* buffers);
};
