// Properties of a device: memory, deferred streams, a number, and the limits of its capability. All cases are correct;
// those with errors are in faulty.hip.
#include <string>

#include "selftest.h"

namespace {

__global__ void copy_value(const int* from, int* to) { *to = *from; }

__global__ void nothing() {}

hipError_t start(void (*kernel)(int*), hipStream_t stream, int* argument) {
  hipLaunchKernelGGL(kernel, dim3(1), dim3(1), 0, stream, argument);
  return hipGetLastError();
}

// Memory that only kernels and copies may access.
bool device_memory() {
  int *memory = nullptr, there = 41, back = 0;
  bool right = is(hipMalloc(&memory, sizeof(int)), hipSuccess) &&
               is(hipMemcpy(memory, &there, sizeof(int), hipMemcpyHostToDevice), hipSuccess) &&
               is(start(add_one, nullptr, memory), hipSuccess) &&
               is(hipMemcpy(&back, memory, sizeof(int), hipMemcpyDeviceToHost), hipSuccess) &&
               same("what came back", back, 42);
  return is(hipFree(memory), hipSuccess) && right;
}

// A launch returns before its kernel has run, and so does a copy from pinned memory; pageable host memory is read at
// once.
bool later() {
  int *pinned = nullptr, *from = nullptr, *to = nullptr, pageable = 1, result = 0;
  hipStream_t stream = nullptr;
  bool right = is(hipStreamCreate(&stream), hipSuccess) && is(hipHostMalloc(&pinned, sizeof(int)), hipSuccess) &&
               is(hipMalloc(&from, sizeof(int)), hipSuccess) && is(hipMalloc(&to, sizeof(int)), hipSuccess);
  const auto copy = [&](const int* source) {
    return is(hipMemcpyAsync(from, source, sizeof(int), hipMemcpyHostToDevice, stream), hipSuccess);
  };
  right = right && copy(&pageable);
  pageable = 2;
  hipLaunchKernelGGL(copy_value, dim3(1), dim3(1), 0, stream, from, to);
  right = right && is(hipStreamQuery(stream), GPUSIM_TSAN ? hipSuccess : hipErrorNotReady) &&
          is(hipStreamSynchronize(stream), hipSuccess) && is(hipStreamQuery(stream), hipSuccess) &&
          is(hipMemcpy(&result, to, sizeof(int), hipMemcpyDeviceToHost), hipSuccess) &&
          same("of pageable memory", result, 1);
  *pinned = 3;
  right = right && copy(pinned) && is(hipFreeAsync(from, stream), hipSuccess) &&
          is(hipStreamDestroy(stream), hipSuccess) && is(hipStreamSynchronize(stream), hipErrorInvalidHandle) &&
          is(hipGetLastError(), hipErrorInvalidHandle);
  return is(hipHostFree(pinned), hipSuccess) && is(hipFree(to), hipSuccess) && right;
}

// The null stream waits for the device's other streams and precedes their later work, except for those apart.
bool null_stream() {
  Array<int> values(3);
  hipStream_t stream = nullptr, apart = nullptr;
  bool right = is(hipStreamCreate(&stream), hipSuccess) &&
               is(hipStreamCreateWithFlags(&apart, hipStreamNonBlocking), hipSuccess);
  int* const out = values.data();
  right = right && is(start(add_one, stream, out), hipSuccess) && is(start(add_one, apart, out + 2), hipSuccess);
  hipLaunchKernelGGL(copy_value, dim3(1), dim3(1), 0, nullptr, out, out + 1);
  right = right && is(start(add_one, stream, out + 1), hipSuccess) && is(hipStreamSynchronize(stream), hipSuccess) &&
          is(hipStreamQuery(nullptr), hipSuccess) &&
          is(hipStreamQuery(apart), GPUSIM_TSAN ? hipSuccess : hipErrorNotReady);
  right = right && is(hipStreamDestroy(stream), hipSuccess) && is(hipStreamDestroy(apart), hipSuccess);
  return right && same("one after the other", values[1], 2) && same("apart", values[2], 1);
}

// A kernel is launched on the current device, and on a stream of that device.
bool two_devices() {
  int *memory = nullptr, device = -1, result = 0;
  hipStream_t stream = nullptr;
  bool right = is(hipSetDevice(1), hipSuccess) && is(hipMalloc(&memory, sizeof(int)), hipSuccess) &&
               is(hipMemset(memory, 0, sizeof(int)), hipSuccess) && is(hipStreamCreate(&stream), hipSuccess) &&
               is(start(add_one, stream, memory), hipSuccess) && is(start(add_one, nullptr, memory), hipSuccess) &&
               is(hipSetDevice(0), hipSuccess) && is(start(add_one, stream, memory), hipErrorInvalidHandle) &&
               is(hipSetDevice(1), hipSuccess) &&
               is(hipMemcpy(&result, memory, sizeof(int), hipMemcpyDeviceToHost), hipSuccess) &&
               same("what ran on device 1", result, 2) && is(hipGetDevice(&device), hipSuccess) &&
               same("the device", device, 1) && is(hipStreamDestroy(stream), hipSuccess);
  return is(hipFree(memory), hipSuccess) && is(hipSetDevice(0), hipSuccess) && right;
}

// Run with GPUSIM_CAPABILITY: the maximum shared memory of a block, and the capacity of a multiprocessor.
bool capability_is(int major, int minor, int optin, int by_shared, int by_threads) {
  hipDeviceProp_t properties;
  int most = 0, small = 0;
  bool right = is(hipGetDeviceProperties(&properties, 0), hipSuccess) && same("major", properties.major, major) &&
               same("minor", properties.minor, minor) &&
               same("shared memory", static_cast<double>(properties.sharedMemPerBlockOptin), optin);
  const auto allow = [](int bytes) {
    return hipFuncSetAttribute(nothing, hipFuncAttributeMaxDynamicSharedMemorySize, bytes);
  };
  right = right && is(allow(optin), hipSuccess) && is(allow(optin + 1), hipErrorInvalidValue) &&
          is(hipGetLastError(), hipErrorInvalidValue) &&
          is(hipOccupancyMaxActiveBlocksPerMultiprocessor(&most, nothing, 32, 16 * 1024), hipSuccess) &&
          is(hipOccupancyMaxActiveBlocksPerMultiprocessor(&small, nothing, 1024, 0), hipSuccess);
  // In such a small block each thread may have 255 registers, which allocation units round up to 256.
  const int by_registers = 65536 / (256 * warpSize);
  return right && same("blocks of 16 KB", most, std::min(by_shared, by_registers)) &&
         same("blocks of 1024 threads", small, by_threads);
}

bool smallest() { return capability_is(7, 5, 64 * 1024, 4, 1); }
bool usual() { return capability_is(8, 6, 99 * 1024, 5, 1); }
bool largest() { return capability_is(9, 0, 227 * 1024, 13, 1); }

// Run with GPUSIM_REGISTERS, which has 64 for `nothing` and 80 for `add_one`; without it, the maximum is assumed.
bool registers() {
  const bool counted = std::getenv("GPUSIM_REGISTERS") != nullptr;
  int resident = 0;
  const auto launch = [](unsigned threads) {
    hipLaunchKernelGGL(add_one, dim3(1), dim3(threads), 0, nullptr, static_cast<int*>(nullptr));
    return hipGetLastError();
  };
  bool right = is(hipOccupancyMaxActiveBlocksPerMultiprocessor(&resident, nothing, 256, 0), hipSuccess) &&
               same("resident blocks", resident, counted ? 4 : 1);
  return right && (!counted || is(launch(1024), hipErrorLaunchOutOfResources));
}

}  // namespace

const std::vector<Case>& device_cases() {
  static const std::string asked = std::getenv("GPUSIM_CAPABILITY") != nullptr ? std::getenv("GPUSIM_CAPABILITY") : "";
  static const std::vector<Case> cases = {
      {"device_memory", device_memory},
      {"later", later},
      {"null_stream", null_stream},
      {"two_devices", two_devices},
      {"registers", registers},
      {"capability", asked == "7.5" ? smallest : asked == "9.0" ? largest : usual},
  };
  return cases;
}
