#include "launch.cuh"

#include <dlfcn.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>

#include <map>
#include <mutex>
#include <string>

#include "ops/aten.h"

namespace fourfold::gpu {
namespace {

std::string version(int number) { return std::to_string(number / 1000) + "." + std::to_string(number % 1000 / 10); }

#if defined(USE_ROCM)
constexpr const char* architectures_variable = "PYTORCH_ROCM_ARCH";
#else
constexpr const char* architectures_variable = "TORCH_CUDA_ARCH_LIST";
#endif

// The device's architecture, as that variable spells it.
std::string architecture_of(const cudaDeviceProp& properties) {
#if defined(USE_ROCM)
  return properties.gcnArchName;
#else
  return std::to_string(properties.major) + "." + std::to_string(properties.minor);
#endif
}

[[noreturn]] void fail_without_image(Place place) {
  int device = 0;
  cudaDeviceProp properties;
  const bool known =
      cudaGetDevice(&device) == cudaSuccess && cudaGetDeviceProperties(&properties, device) == cudaSuccess;
  const std::string architecture = known ? architecture_of(properties) : "of an unknown architecture";
  fail("fourfold: this build has GPU kernels for the architectures ", FOURFOLD_CUDA_ARCHITECTURES, ", but device ",
       place.index, known ? std::string(" (") + properties.name + ")" : std::string(), " is ", architecture,
       "; install a newer fourfold, or build it for that GPU: ", architectures_variable, "=", architecture,
       " pip install --no-build-isolation .");
}

[[noreturn]] void fail_with_old_driver() {
  int driver = 0;
  int runtime = 0;
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  fail("fourfold: the GPU driver serves version ", version(driver), ", but this build's kernels need ",
       version(runtime), "; update the driver, or build fourfold with an older toolkit");
}

// From Ampere on. AMD's matrix instructions lay their fragments out otherwise; mma.cuh's twin would be right there, but
// slower than a launch for each step, so that only a simulation asks for it.
bool has_tile_products(int capability_major) {
#if defined(USE_ROCM)
#if defined(FOURFOLD_SIMULATION)
  return true;
#else
  return false;
#endif
#else
  return capability_major >= 8;
#endif
}

Limits read_limits(Place place) {
  const DeviceGuard guard(place);
  int device = 0;
  check(place, cudaGetDevice(&device));
  const auto attribute = [&](cudaDeviceAttr name) {
    int value = 0;
    check(place, cudaDeviceGetAttribute(&value, name, device));
    return value;
  };
  return {
      .multiprocessors = attribute(cudaDevAttrMultiProcessorCount),
      .shared_bytes = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin),
      .cooperative = attribute(cudaDevAttrCooperativeLaunch) != 0,
      .tile_products = has_tile_products(attribute(cudaDevAttrComputeCapabilityMajor)),
  };
}

}  // namespace

void check(Place place, cudaError_t code) {
  if (code == cudaSuccess) return;
  cudaGetLastError();
  switch (code) {
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorInvalidDeviceFunction: fail_without_image(place);
    case cudaErrorInsufficientDriver: fail_with_old_driver();
    case cudaErrorMemoryAllocation:
      fail("fourfold: device ", place.index, " is out of memory; free some, or make the batch smaller");
    default:
      fail("fourfold: device ", place.index, " reports: ", cudaGetErrorString(code),
           " (of this call or an earlier one; CUDA_LAUNCH_BLOCKING=1 tells which)");
  }
}

// Through torch, which does not open a context on a device only to return to it; and then in the runtime that is linked
// in here, should it keep a current device of its own.
DeviceGuard::DeviceGuard(Place place) {
  int current = -1;
  check(place, cudaGetDevice(&current));
  if (current == place.index) return;
  DeviceGuardHandle guard = nullptr;
  check_call(aoti_torch_create_device_guard(place.index, &guard), "a change of device");
  guard_ = guard;
#if !defined(FOURFOLD_SIMULATION)  // whose tensors lie on no GPU
  check(place, cudaSetDevice(place.index));
#endif
}

DeviceGuard::~DeviceGuard() {
  if (guard_ != nullptr) aoti_torch_delete_device_guard(static_cast<DeviceGuardHandle>(guard_));
}

void* in_gpu_torch(const char* name) {
  if (void* found = dlsym(RTLD_DEFAULT, name)) return found;
  for (const char* library : {"libtorch_cuda.so", "libtorch_hip.so"}) {
    // Only where it is loaded already.
    if (void* handle = dlopen(library, RTLD_LAZY | RTLD_NOLOAD)) return dlsym(handle, name);
  }
  return nullptr;
}

void allow_shared_memory(Place place, const Grid& grid, const void* kernel) {
  if (grid.shared_bytes <= 48 * 1024) return;
  const auto bytes = static_cast<int>(grid.shared_bytes);
  check(place, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
}

cudaStream_t current_stream(Place place) {
  static auto* const get =
      reinterpret_cast<AOTITorchError (*)(int32_t, void**)>(in_gpu_torch("aoti_torch_get_current_cuda_stream"));
  if (get == nullptr) fail("fourfold: the library of torch's GPU streams, libtorch_cuda or libtorch_hip, is not loaded");
  void* stream = nullptr;
  check_call(get(place.index, &stream), "the current stream");
  return static_cast<cudaStream_t>(stream);
}

const Limits& limits(Place place) {
  static std::mutex mutex;
  static std::map<int, Limits> known;
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = known.find(place.index);
  return found != known.end() ? found->second : known.emplace(place.index, read_limits(place)).first->second;
}

void copy(Place place, void* to, const void* from, size_t bytes) {
  const DeviceGuard guard(place);
  check(place, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, current_stream(place)));
}

void clear(Place place, void* memory, size_t bytes) {
  const DeviceGuard guard(place);
  check(place, cudaMemsetAsync(memory, 0, bytes, current_stream(place)));
}

}  // namespace fourfold::gpu
