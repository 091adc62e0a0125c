// What the simulated Metal framework asks of the simulator: to compile kernels, and to run them.
#pragma once

#include <string>

#include "run/kernel.h"

namespace gpusim::metal {

// The kernels of a source, up to one without a name; null, and in `said` why not. Compiled once, also for other processes.
const GpusimMetalKernel* compile(const std::string& source, std::string& said);

// What is bound to an index.
struct Binding {
  enum { nothing, buffer, bytes } what = nothing;
  char* memory = nullptr;
  size_t length = 0;
  std::string value;  // of bytes
};

constexpr unsigned most_bindings = 31;

struct Dispatch {
  const GpusimMetalKernel* kernel;
  Binding bindings[most_bindings];
  size_t threadgroup_bytes;
  bool has_threadgroup_memory;
  uint64_t threads[3];  // of the grid; those of its last threadgroups beyond it do not exist
  uint64_t group[3];    // threads of a threadgroup
};

// Checks it as Metal's validation does, and has it run when somebody waits for the GPU.
void dispatch(const Dispatch& dispatch);

// Aborts with a sentence: what Metal's validation would do.
[[noreturn]] void refuse(const char* sentence);

}  // namespace gpusim::metal
