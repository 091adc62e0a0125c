// The runtime's errors: their names, the last error of each host thread, and the hook that makes a launch fail.
#pragma once

#include <atomic>

#pragma GCC visibility push(hidden)

enum hipError_t : int {
  hipSuccess = 0,
  hipErrorInvalidValue = 1,
  hipErrorOutOfMemory = 2,
  hipErrorMemoryAllocation = hipErrorOutOfMemory,  // the older name, which hipify writes
  hipErrorNotInitialized = 3,
  hipErrorInvalidConfiguration = 9,
  hipErrorInsufficientDriver = 35,
  hipErrorInvalidDeviceFunction = 98,
  hipErrorNoDevice = 100,
  hipErrorInvalidDevice = 101,
  hipErrorNoBinaryForGpu = 209,
  hipErrorInvalidHandle = 400,
  hipErrorNotReady = 600,
  hipErrorIllegalAddress = 700,
  hipErrorLaunchOutOfResources = 701,
  hipErrorLaunchTimeOut = 702,
  hipErrorLaunchFailure = 719,
  hipErrorCooperativeLaunchTooLarge = 720,
  hipErrorNotSupported = 801,
  hipErrorUnknown = 999,
};

namespace gpusim {

struct ErrorText {
  hipError_t error;
  const char* name;
  const char* sentence;
};

inline constexpr ErrorText error_texts[] = {
    {hipSuccess, "hipSuccess", "no error"},
    {hipErrorInvalidValue, "hipErrorInvalidValue", "invalid argument"},
    {hipErrorOutOfMemory, "hipErrorOutOfMemory", "out of memory"},
    {hipErrorNotInitialized, "hipErrorNotInitialized", "initialization error"},
    {hipErrorInvalidConfiguration, "hipErrorInvalidConfiguration", "invalid configuration argument"},
    {hipErrorInsufficientDriver, "hipErrorInsufficientDriver", "driver version is insufficient for runtime version"},
    {hipErrorInvalidDeviceFunction, "hipErrorInvalidDeviceFunction", "invalid device function"},
    {hipErrorNoDevice, "hipErrorNoDevice", "no ROCm-capable device is detected"},
    {hipErrorInvalidDevice, "hipErrorInvalidDevice", "invalid device ordinal"},
    {hipErrorNoBinaryForGpu, "hipErrorNoBinaryForGpu", "no kernel image is available for execution on the device"},
    {hipErrorInvalidHandle, "hipErrorInvalidHandle", "invalid resource handle"},
    {hipErrorNotReady, "hipErrorNotReady", "device not ready"},
    {hipErrorIllegalAddress, "hipErrorIllegalAddress", "an illegal memory access was encountered"},
    {hipErrorLaunchOutOfResources, "hipErrorLaunchOutOfResources", "too many resources requested for launch"},
    {hipErrorLaunchTimeOut, "hipErrorLaunchTimeOut", "the launch timed out and was terminated"},
    {hipErrorLaunchFailure, "hipErrorLaunchFailure", "unspecified launch failure"},
    {hipErrorCooperativeLaunchTooLarge, "hipErrorCooperativeLaunchTooLarge", "too many blocks in cooperative launch"},
    {hipErrorNotSupported, "hipErrorNotSupported", "operation not supported"},
};

inline constexpr ErrorText unknown_error = {hipErrorUnknown, "hipErrorUnknown", "unknown error"};

inline const ErrorText& text_of(hipError_t error) {
  for (const ErrorText& text : error_texts) {
    if (text.error == error) return text;
  }
  return unknown_error;
}

inline thread_local hipError_t last_error = hipSuccess;
inline std::atomic<int> next_launch_error{hipSuccess};

// Stores an error for hipGetLastError, as every function of the runtime does, and returns it.
inline hipError_t noted(hipError_t error) {
  if (error != hipSuccess) last_error = error;
  return error;
}

// The next launch runs nothing and fails with this error. Later launches work.
inline void fail_next_launch(hipError_t error) { next_launch_error = error; }

}  // namespace gpusim

// The same for Python's ctypes.
extern "C" __attribute__((used, visibility("default"))) inline void gpusim_fail_next_launch(int error) {
  gpusim::fail_next_launch(static_cast<hipError_t>(error));
}

inline const char* hipGetErrorName(hipError_t error) { return gpusim::text_of(error).name; }
inline const char* hipGetErrorString(hipError_t error) { return gpusim::text_of(error).sentence; }
inline hipError_t hipPeekAtLastError() { return gpusim::last_error; }

inline hipError_t hipGetLastError() {
  const hipError_t error = gpusim::last_error;
  gpusim::last_error = hipSuccess;
  return error;
}

#pragma GCC visibility pop
