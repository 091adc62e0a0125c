// The interface between a kernel compiled for the simulator and the simulator.
#pragma once

#include <cstddef>
#include <source_location>

#define GPUSIM_METAL_EXPORTED __attribute__((visibility("default")))

GPUSIM_METAL_EXPORTED void gpusim_metal_barrier(std::source_location site);
// Writes the bytes that every lane of the simdgroup offers to `of_lane`; returns the lanes that arrived, as bits.
GPUSIM_METAL_EXPORTED unsigned gpusim_metal_exchange(
    const char* operation, const void* mine, std::size_t bytes, void* of_lane, std::source_location site);
GPUSIM_METAL_EXPORTED unsigned gpusim_metal_lane();
[[noreturn]] GPUSIM_METAL_EXPORTED void gpusim_metal_fail(const char* operation, std::source_location site);

// A thread's position.
struct GpusimMetalPosition {
  unsigned grid[3];         // position of the thread
  unsigned group[3];        // position of its threadgroup
  unsigned groups[3];       // number of threadgroups
  unsigned index_in_group;
  unsigned lane;
  unsigned simdgroup;
};

GPUSIM_METAL_EXPORTED GpusimMetalPosition gpusim_metal_position();
GPUSIM_METAL_EXPORTED void* gpusim_metal_threadgroup_memory();

enum class GpusimMetalWhat { buffer, group_memory, position };

// A kernel's parameter: for a buffer its index, and what is known of its elements.
struct GpusimMetalParameter {
  GpusimMetalWhat what;
  unsigned index;
  bool one;  // a reference: exactly that many bytes are read
  std::size_t bytes;
  std::size_t alignment;
};

// A library exports its kernels as gpusim_metal_kernels, ended by one without a name.
struct GpusimMetalKernel {
  const char* name;
  const void* function;
  unsigned most_threads;  // per threadgroup
  unsigned parameters;
  const GpusimMetalParameter* parameter;
  void (*call)(void* const* buffers);
};
