#include "launch.cuh"

#include <torch/csrc/inductor/aoti_torch/c/shim.h>

#include <map>
#include <mutex>
#include <string>

#include "ops/aten.h"
#include "system/system.h"

namespace fourfold::gpu {
namespace {

std::string version(int number) { return std::to_string(number / 1000) + "." + std::to_string(number % 1000 / 10); }

#if defined(USE_ROCM)
constexpr const char* architectures_variable = "PYTORCH_ROCM_ARCH";
#else
constexpr const char* architectures_variable = "TORCH_CUDA_ARCH_LIST";
#endif

// The device's architecture in the format of that variable.
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

// From Ampere on. AMD's matrix instructions have other fragment layouts. The portable twin in mma.cuh would be correct
// there, but slower than one launch per step, so only simulations use it.
bool has_tile_products(int capability_major) {
#if defined(USE_ROCM) && !defined(FOURFOLD_SIMULATION)
  return false;
#else
  return capability_major >= 8;
#endif
}

// Whether the device has an open context. Switching to a device without one would open it and use device memory.
bool has_context(int device) {
  using State = int(int device, unsigned* flags, int* active);
  static auto* const state = reinterpret_cast<State*>(system::symbol_of("libcuda.so.1", "cuDevicePrimaryCtxGetState"));
  unsigned flags = 0;
  int active = 1;
  return state == nullptr || (state(device, &flags, &active) == 0 && active != 0);
}

// From this many multiply-adds per step on, the vendor's product is faster, although it takes launches of its own. On an
// H100 a step of an LSTM takes 42 to 57 µs with fourfold's product of 512 units, 75 to 131 µs of 1,024, and 11 to 51 µs with
// the vendor's; called one by one from Python, steps of 512 units are still faster with fourfold's.
constexpr int64_t vendor_work = int64_t(1) << 24;
// The same for a product's depth, which one thread adds up.
constexpr int64_t vendor_depth = 513;

std::string target_of(const cudaDeviceProp& properties) {
#if defined(USE_ROCM)
  const std::string architecture = properties.gcnArchName;
  return "hip " + architecture.substr(0, architecture.find(':'));
#else
  return "cuda sm_" + std::to_string(properties.major) + std::to_string(properties.minor);
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
  cudaDeviceProp properties;
  check(place, cudaGetDeviceProperties(&properties, device));
  return {
      .multiprocessors = attribute(cudaDevAttrMultiProcessorCount),
      .shared_bytes = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin),
      .cooperative = attribute(cudaDevAttrCooperativeLaunch) != 0,
      .tile_products = has_tile_products(attribute(cudaDevAttrComputeCapabilityMajor)),
      .target = target_of(properties),
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

// torch's current device is changed through torch, whose guard opens no context only to restore a device.
DeviceGuard::DeviceGuard(Place place) : place_(place) {
  int32_t torchs = -1;
  check_call(aoti_torch_get_current_device_index(&torchs), "the current device");
  if (torchs != place.index) {
    DeviceGuardHandle guard = nullptr;
    check_call(aoti_torch_create_device_guard(place.index, &guard), "a change of device");
    guard_ = guard;
  }
  check(place, cudaGetDevice(&before_));
  if (before_ != place.index) check(place, cudaSetDevice(place.index));
}

// Restores torch's device last, so that torch's context is the thread's current one.
DeviceGuard::~DeviceGuard() {
  if (before_ >= 0 && before_ != place_.index && has_context(before_)) cudaSetDevice(before_);
  if (guard_ != nullptr) aoti_torch_delete_device_guard(static_cast<DeviceGuardHandle>(guard_));
}

void* in_gpu_torch(const char* name) {
  if (void* found = system::symbol_of_process(name)) return found;
  for (const char* library : {"libtorch_cuda.so", "libtorch_hip.so"}) {
    if (void* found = system::symbol_of(library, name)) return found;
  }
  return nullptr;
}

void allow_shared_memory(Place place, const Grid& grid, const void* kernel) {
  if (grid.shared_bytes <= 48 * 1024) return;
  // As much as the device has, since other threads may launch the kernel with another size.
  const int bytes = limits(place).shared_bytes;
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

bool vendor_wins(int64_t work) { return fourfold::vendor_wins(work, vendor_work); }

bool vendor_wins_in_depth(int64_t depth) { return fourfold::vendor_wins(depth, vendor_depth); }

void copy(Place place, void* to, const void* from, size_t bytes) {
  const DeviceGuard guard(place);
  check(place, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, current_stream(place)));
}

void fill(Place place, void* memory, int byte, size_t bytes) {
  const DeviceGuard guard(place);
  check(place, cudaMemsetAsync(memory, byte, bytes, current_stream(place)));
}

}  // namespace fourfold::gpu
