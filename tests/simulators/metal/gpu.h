// The simulator's interface for the simulated Metal framework: compiling kernels, and running them.
#pragma once

#include <string>

#include "run/kernel.h"

namespace gpusim::metal {

// The kernels of a source, ended by one without a name; or null, with the reason in `said`. Compiled once, also across
// processes.
const GpusimMetalKernel* compile(const std::string& source, std::string& said);

// The binding of an index.
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
  uint64_t threads[3];  // of the grid; threads of the last threadgroups beyond it do not exist
  uint64_t group[3];    // per threadgroup
};

// Validates it as Metal does, and runs it when something waits for the GPU.
void dispatch(const Dispatch& dispatch);

// Aborts with a message, like Metal's validation.
[[noreturn]] void refuse(const char* sentence);

}  // namespace gpusim::metal
