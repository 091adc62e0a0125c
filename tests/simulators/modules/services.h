// The interface between a module that is compiled for the simulator at run time and the simulated library.
#pragma once

#include <cstddef>
#include <cstdint>
#include <source_location>

#define GPUSIM_SERVICE extern "C" __attribute__((visibility("default")))

struct GpusimIndex {
  unsigned x, y, z;
};

struct GpusimPosition {
  GpusimIndex thread;  // in its block
  GpusimIndex block;
  GpusimIndex block_size;
  GpusimIndex blocks;
};

GPUSIM_SERVICE GpusimPosition gpusim_service_position();
GPUSIM_SERVICE void gpusim_service_barrier(std::source_location site);
// Writes the bytes that every lane of the warp offers to `of_lanes`.
GPUSIM_SERVICE void gpusim_service_exchange(
    const char* operation, const void* mine, std::size_t bytes, bool fences, void* of_lanes, std::source_location site);
GPUSIM_SERVICE unsigned gpusim_service_lane();
GPUSIM_SERVICE void* gpusim_service_shared();
