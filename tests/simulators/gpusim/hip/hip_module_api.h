// Modules: code compiled at run time. A module's image is the path of a library whose kernels have one argument;
// tests/simulated_programs.py builds it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "../launch.h"

#pragma GCC visibility push(hidden)

struct GpusimModule {
  void* library;
};
struct GpusimFunction {
  std::string name;
  void (*call)(const void* argument);
  size_t bytes;  // of the argument
};
using hipModule_t = GpusimModule*;
using hipFunction_t = GpusimFunction*;

inline hipError_t hipModuleLoadData(hipModule_t* module, const void* image) {
  void* library = dlopen(static_cast<const char*>(image), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) gpusim::fail("a module can't be loaded: %s", dlerror());
  *module = new GpusimModule{library};
  return hipSuccess;
}

inline hipError_t hipModuleGetFunction(hipFunction_t* function, hipModule_t module, const char* name) {
  const std::string own = name;
  void* call = dlsym(module->library, (own + "_call").c_str());
  void* bytes = dlsym(module->library, (own + "_bytes").c_str());
  if (call == nullptr || bytes == nullptr) return gpusim::noted(hipErrorInvalidDeviceFunction);
  *function = new GpusimFunction{own, reinterpret_cast<void (*)(const void*)>(call), *static_cast<const size_t*>(bytes)};
  return hipSuccess;
}

namespace gpusim {

struct ModuleCall {
  hipFunction_t function;
  std::vector<char> argument;

  static void call(const void* self) {
    void (*kernel)(const void*) = nullptr;
    alignas(16) char own[4096];  // on the GPU thread's stack
    {
      const Unwatched unwatched;
      const auto& it = *static_cast<const ModuleCall*>(self);
      kernel = it.function->call;
      std::memcpy(own, it.argument.data(), it.argument.size());
    }
    const InKernel in_kernel;
    kernel(own);
  }
};

}  // namespace gpusim

inline hipError_t hipModuleLaunchKernel(
    hipFunction_t function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
    unsigned block_z, unsigned shared_bytes, hipStream_t stream, void** parameters, void**) {
  using namespace gpusim;
  if (!streams().knows(stream)) return noted(hipErrorInvalidHandle);
  Launch it;
  it.grid = dim3(grid_x, grid_y, grid_z);
  it.block = dim3(block_x, block_y, block_z);
  it.shared_bytes = shared_bytes;
  it.device = stream->device;
  it.kernel = reinterpret_cast<const void*>(function->call);
  it.call = ModuleCall::call;
  if (it.device != current_device) return noted(hipErrorInvalidHandle);
  if (const hipError_t error = noted(refusal(it)); error != hipSuccess) return error;
  if (function->bytes > 4096) return noted(hipErrorInvalidValue);
  const char* const from = static_cast<const char*>(parameters[0]);
  const auto call = std::make_shared<ModuleCall>(ModuleCall{function, {from, from + function->bytes}});
  streams().add(stream, [it, call]() mutable {
    it.arguments = call.get();
    run(it);
  });
  return hipSuccess;
}

#pragma GCC visibility pop
