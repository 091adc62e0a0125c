// Runs a single Metal kernel for a test in Python, without the framework's classes.
#include "gpu.h"

#include <device_functions.h>
#include <hip/hip_runtime_api.h>

namespace {
std::string said;
}

// Runs the kernel that the source instantiates with that many threads: buffer k is memory[k], of sizes[k] bytes.
// Returns null, or the compilation errors.
extern "C" __attribute__((visibility("default"))) const char* gpusim_metal_run(
    const char* source, void* const* memory, const size_t* sizes, int buffers, unsigned long threads,
    unsigned long threads_of_group, size_t threadgroup_bytes) {
  gpusim::metal::Dispatch dispatch{};
  dispatch.kernel = gpusim::metal::compile(source, said);
  if (dispatch.kernel == nullptr) return said.c_str();
  for (int k = 0; k < buffers; ++k) {
    dispatch.bindings[k].what = gpusim::metal::Binding::buffer;
    dispatch.bindings[k].memory = static_cast<char*>(memory[k]);
    dispatch.bindings[k].length = sizes[k];
  }
  dispatch.threadgroup_bytes = threadgroup_bytes;
  dispatch.has_threadgroup_memory = threadgroup_bytes != 0;
  const uint64_t grid[] = {threads, 1, 1}, group[] = {threads_of_group, 1, 1};
  std::copy(grid, grid + 3, dispatch.threads);
  std::copy(group, group + 3, dispatch.group);
  gpusim::metal::dispatch(dispatch);
  if (hipDeviceSynchronize() != 0) said = "the kernel failed";
  return said.empty() ? nullptr : said.c_str();
}
