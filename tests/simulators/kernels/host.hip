// Host code: limits that make a launch fail, errors that persist until they are read, and the device's properties.
#include <atomic>
#include <string>
#include <thread>

#include "selftest.h"

namespace {

__global__ void touch(int* out) {
  if (out != nullptr) atomicAdd(out, 1);
}

__global__ void fill_shared(unsigned char* out, int last) {
  HIP_DYNAMIC_SHARED(unsigned char, bytes)
  *out = bytes[last];
}

hipError_t try_launch(dim3 grid, dim3 block, size_t shared_bytes = 0) {
  hipLaunchKernelGGL(touch, grid, block, shared_bytes, nullptr, static_cast<int*>(nullptr));
  const hipError_t error = hipPeekAtLastError();
  return is(hipGetLastError(), error) && is(hipGetLastError(), hipSuccess) ? error : hipErrorUnknown;
}

bool launch_limits() {
  return is(try_launch(dim3(1), dim3(1024)), hipSuccess) &&
         is(try_launch(dim3(1), dim3(1025)), hipErrorInvalidConfiguration) &&
         is(try_launch(dim3(1), dim3(32, 33)), hipErrorInvalidConfiguration) &&
         is(try_launch(dim3(1), dim3(1, 1, 65)), hipErrorInvalidConfiguration) &&
         is(try_launch(dim3(0), dim3(32)), hipErrorInvalidConfiguration) &&
         is(try_launch(dim3(1, 65536), dim3(1)), hipErrorInvalidConfiguration) &&
         is(try_launch(dim3(1), dim3(1), 48 * 1024), hipSuccess) &&
         is(try_launch(dim3(1), dim3(1), 48 * 1024 + 1), hipErrorInvalidValue);
}

// Above 48 KB the kernel's attribute must be set first; above the device's limit no launch works.
bool shared_memory_limit() {
  Array<unsigned char> out(1);
  const auto launch = [&](size_t bytes) {
    hipLaunchKernelGGL(fill_shared, dim3(1), dim3(1), bytes, nullptr, out.data(), static_cast<int>(bytes) - 1);
    return hipGetLastError();
  };
  int most = 0;
  if (!is(hipDeviceGetAttribute(&most, hipDeviceAttributeSharedMemPerBlockOptin, 0), hipSuccess)) return false;
  const auto allow = [](int bytes) {
    return hipFuncSetAttribute(fill_shared, hipFuncAttributeMaxDynamicSharedMemorySize, bytes);
  };
  hipFuncAttributes attributes;
  bool right = is(launch(64 * 1024), hipErrorInvalidValue) && is(allow(64 * 1024), hipSuccess) &&
               is(launch(64 * 1024), hipSuccess) && same("junk", out[0], 0xCD) &&
               is(launch(64 * 1024 + 1), hipErrorInvalidValue) && is(allow(most + 1), hipErrorInvalidValue) &&
               is(hipGetLastError(), hipErrorInvalidValue) && is(launch(64 * 1024), hipSuccess);
  right = right && is(hipFuncGetAttributes(&attributes, fill_shared), hipSuccess);
  return right && same("the kernel's limit", attributes.maxDynamicSharedSizeBytes, 64 * 1024);
}

bool cooperative_limit() {
  int multiprocessors = 0, resident = 0, yes = 0;
  (void)hipDeviceGetAttribute(&multiprocessors, hipDeviceAttributeMultiprocessorCount, 0);
  (void)hipDeviceGetAttribute(&yes, hipDeviceAttributeCooperativeLaunch, 0);
  (void)hipOccupancyMaxActiveBlocksPerMultiprocessor(&resident, touch, 256, 40 * 1024);
  Array<int> count(1);
  int* out = count.data();
  void* arguments[] = {&out};
  const unsigned most = static_cast<unsigned>(multiprocessors * resident);
  const auto launch = [&](unsigned blocks) {
    return hipLaunchCooperativeKernel(touch, dim3(blocks), dim3(256), arguments, 40 * 1024, nullptr);
  };
  return same("the attribute", yes, 1) && same("resident blocks", resident, 1) && is(launch(most), hipSuccess) &&
         same("the count", count[0], most * 256.0) && is(launch(most + 1), hipErrorCooperativeLaunchTooLarge) &&
         is(hipGetLastError(), hipErrorCooperativeLaunchTooLarge) && same("the count", count[0], most * 256.0);
}

// An injected failure runs nothing, and the next launch works.
bool injected_failure() {
  Array<int> count(1);
  int* out = count.data();
  void* arguments[] = {&out};
  const auto launch = [&] { return hipLaunchKernel(touch, dim3(1), dim3(1), arguments, 0, nullptr); };
  bool right = true;
  for (const hipError_t error : {hipErrorNoBinaryForGpu, hipErrorOutOfMemory, hipErrorLaunchFailure}) {
    gpusim::fail_next_launch(error);
    right = right && is(launch(), error) && is(hipGetLastError(), error) && is(hipGetLastError(), hipSuccess);
  }
  right = right && same("the count", count[0], 0) && is(launch(), hipSuccess) && same("the count", count[0], 1);
  gpusim_fail_next_launch(hipErrorLaunchFailure);
  return right && is(try_launch(dim3(1), dim3(1)), hipErrorLaunchFailure) &&
         hipGetErrorName(hipErrorLaunchFailure) == std::string("hipErrorLaunchFailure") &&
         hipGetErrorString(hipErrorNoBinaryForGpu) ==
             std::string("no kernel image is available for execution on the device");
}

bool device_numbers() {
  int devices = 0, device = -1, width = 0, version = 0;
  hipDeviceProp_t properties;
  hipStreamCaptureStatus capturing;
  return is(hipGetDeviceCount(&devices), hipSuccess) && same("devices", devices, 2) &&
         is(hipGetDevice(&device), hipSuccess) && same("the device", device, 0) && is(hipSetDevice(0), hipSuccess) &&
         is(hipSetDevice(2), hipErrorInvalidDevice) && is(hipGetLastError(), hipErrorInvalidDevice) &&
         is(hipDeviceGetAttribute(&width, hipDeviceAttributeWarpSize, 0), hipSuccess) &&
         same("the warp", width, warpSize) && is(hipGetDeviceProperties(&properties, 0), hipSuccess) &&
         same("the warp", properties.warpSize, warpSize) && is(hipRuntimeGetVersion(&version), hipSuccess) &&
         is(hipStreamIsCapturing(nullptr, &capturing), hipSuccess) && capturing == hipStreamCaptureStatusNone;
}

bool copies() {
  Array<int> from(12), to(12, -1);
  for (int k = 0; k < 12; ++k) from[k] = k;
  // Two of the four columns, three rows.
  bool right = is(hipMemcpy2DAsync(to.data(), 2 * sizeof(int), from.data(), 4 * sizeof(int), 2 * sizeof(int), 3,
                                   hipMemcpyDeviceToDevice, nullptr),
                  hipSuccess) &&
               is(hipMemsetAsync(&to[6], 0, 2 * sizeof(int), nullptr), hipSuccess) &&
               is(hipMemcpyAsync(&to[8], &from[1], sizeof(int), hipMemcpyDefault, nullptr), hipSuccess);
  const int wanted[12] = {0, 1, 4, 5, 8, 9, 0, 0, 1, -1, -1, -1};
  for (int k = 0; k < 12; ++k) right = right && same("the copy", to[k], wanted[k]);
  return right;
}

// Launches from two host threads follow one another; nothing else orders them for ThreadSanitizer.
bool stream_order() {
  Array<int> count(1);
  std::atomic<int> turn{0};
  const auto work = [&](int mine) {
    for (int k = 0; k < 4; ++k) {
      while (turn.load(std::memory_order_relaxed) != 2 * k + mine) std::this_thread::yield();
      hipLaunchKernelGGL(add_one, dim3(1), dim3(1), 0, nullptr, count.data());
      turn.fetch_add(1, std::memory_order_relaxed);
    }
  };
  std::thread other(work, 1);
  work(0);
  other.join();
  return launched() && same("the count", count[0], 8);
}

}  // namespace

const std::vector<Case>& host_cases() {
  static const std::vector<Case> cases = {
      {"launch_limits", launch_limits},         {"shared_memory_limit", shared_memory_limit},
      {"cooperative_limit", cooperative_limit}, {"injected_failure", injected_failure},
      {"device_numbers", device_numbers},       {"copies", copies},
      {"stream_order", stream_order},
  };
  return cases;
}
