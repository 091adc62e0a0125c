// The part of HIP's host interface for memory and streams. Included by hip_runtime_api.h.
#pragma once

#include "../launch.h"

#pragma GCC visibility push(hidden)

enum hipMemcpyKind {
  hipMemcpyHostToHost,
  hipMemcpyHostToDevice,
  hipMemcpyDeviceToHost,
  hipMemcpyDeviceToDevice,
  hipMemcpyDefault,
};

enum hipStreamCaptureStatus {
  hipStreamCaptureStatusNone,
  hipStreamCaptureStatusActive,
  hipStreamCaptureStatusInvalidated,
};

constexpr unsigned hipStreamDefault = 0, hipStreamNonBlocking = 1;

namespace gpusim {

inline bool may_copy(const void* to, const void* from, size_t bytes, hipMemcpyKind kind) {
  if (kind == hipMemcpyDefault) {
    return (is_device_range(to, bytes) || is_host_range(to, bytes)) &&
           (is_device_range(from, bytes) || is_host_range(from, bytes));
  }
  const bool to_device = kind == hipMemcpyHostToDevice || kind == hipMemcpyDeviceToDevice;
  const bool from_device = kind == hipMemcpyDeviceToHost || kind == hipMemcpyDeviceToDevice;
  return (to_device ? is_device_range(to, bytes) : is_host_range(to, bytes)) &&
         (from_device ? is_device_range(from, bytes) : is_host_range(from, bytes));
}

// Pageable host memory is read before the call returns; all other memory when the stream reaches the copy.
inline bool is_read_at_once(const void* from, hipMemcpyKind kind) {
  if (kind != hipMemcpyHostToDevice && kind != hipMemcpyHostToHost) return false;
  return !is_pinned(from);
}

}  // namespace gpusim

inline hipError_t hipStreamCreateWithFlags(hipStream_t* stream, unsigned flags) {
  *stream = gpusim::streams().create(flags == hipStreamNonBlocking);
  return hipSuccess;
}

inline hipError_t hipStreamCreate(hipStream_t* stream) { return hipStreamCreateWithFlags(stream, hipStreamDefault); }

inline hipError_t hipStreamDestroy(hipStream_t stream) {
  if (!gpusim::streams().knows(stream)) return gpusim::noted(hipErrorInvalidHandle);
  gpusim::streams().destroy(stream);
  return hipSuccess;
}

inline hipError_t hipStreamSynchronize(hipStream_t stream) {
  if (stream != nullptr && !gpusim::streams().knows(stream)) return gpusim::noted(hipErrorInvalidHandle);
  gpusim::streams().synchronize(gpusim::streams().of(stream));
  return hipSuccess;
}

inline hipError_t hipStreamQuery(hipStream_t stream) {
  if (stream != nullptr && !gpusim::streams().knows(stream)) return gpusim::noted(hipErrorInvalidHandle);
  return gpusim::streams().is_idle(gpusim::streams().of(stream)) ? hipSuccess : hipErrorNotReady;
}

inline hipError_t hipDeviceSynchronize() {
  gpusim::streams().synchronize_device(gpusim::current_device);
  return hipSuccess;
}

inline hipError_t hipStreamIsCapturing(hipStream_t, hipStreamCaptureStatus* status) {
  *status = hipStreamCaptureStatusNone;
  return hipSuccess;
}

inline hipError_t hipMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                                   size_t height, hipMemcpyKind kind, hipStream_t stream = nullptr) {
  if (width > to_pitch || width > from_pitch) return gpusim::noted(hipErrorInvalidValue);
  if (stream != nullptr && !gpusim::streams().knows(stream)) return gpusim::noted(hipErrorInvalidHandle);
  if (width == 0 || height == 0) return hipSuccess;
  auto* const first_to = static_cast<char*>(to);
  auto* const first_from = static_cast<const char*>(from);
  for (size_t row = 0; row < height; ++row) {
    if (!gpusim::may_copy(first_to + row * to_pitch, first_from + row * from_pitch, width, kind)) {
      return gpusim::noted(hipErrorInvalidValue);
    }
  }
  const auto copy = [=](const char* source, size_t pitch) {
    for (size_t row = 0; row < height; ++row) std::memmove(first_to + row * to_pitch, source + row * pitch, width);
  };
  if (gpusim::is_read_at_once(from, kind)) {
    std::vector<char> staged(width * height);
    for (size_t row = 0; row < height; ++row) {
      std::memcpy(&staged[row * width], first_from + row * from_pitch, width);
    }
    gpusim::streams().add(gpusim::streams().of(stream), [=] { copy(staged.data(), width); });
  } else {
    gpusim::streams().add(gpusim::streams().of(stream), [=] { copy(first_from, from_pitch); });
  }
  return hipSuccess;
}

inline hipError_t hipMemcpyAsync(void* to, const void* from, size_t bytes, hipMemcpyKind kind,
                                 hipStream_t stream = nullptr) {
  return hipMemcpy2DAsync(to, bytes, from, bytes, bytes, 1, kind, stream);
}

inline hipError_t hipMemcpy(void* to, const void* from, size_t bytes, hipMemcpyKind kind) {
  const hipError_t error = hipMemcpyAsync(to, from, bytes, kind, nullptr);
  return error == hipSuccess ? hipStreamSynchronize(nullptr) : error;
}

inline hipError_t hipMemsetAsync(void* to, int value, size_t bytes, hipStream_t stream = nullptr) {
  if (stream != nullptr && !gpusim::streams().knows(stream)) return gpusim::noted(hipErrorInvalidHandle);
  if (bytes == 0) return hipSuccess;
  if (!gpusim::is_device_range(to, bytes)) return gpusim::noted(hipErrorInvalidValue);
  gpusim::streams().add(gpusim::streams().of(stream), [=] { std::memset(to, value, bytes); });
  return hipSuccess;
}

inline hipError_t hipMemset(void* to, int value, size_t bytes) { return hipMemsetAsync(to, value, bytes); }

namespace gpusim {
inline hipError_t allocate_for(void** memory, size_t bytes, bool for_host_too) {
  *memory = nullptr;
  if (bytes == 0) return hipSuccess;
  *memory = allocate(current_device, bytes, for_host_too);
  return *memory == nullptr ? noted(hipErrorOutOfMemory) : hipSuccess;
}
}  // namespace gpusim

inline hipError_t hipMalloc(void** memory, size_t bytes) { return gpusim::allocate_for(memory, bytes, false); }

template <typename T>
hipError_t hipMalloc(T** memory, size_t bytes) {
  return hipMalloc(reinterpret_cast<void**>(memory), bytes);
}

// Memory that host code may use too, after the earlier launches have run.
template <typename T>
hipError_t hipMallocManaged(T** memory, size_t bytes) {
  return gpusim::allocate_for(reinterpret_cast<void**>(memory), bytes, true);
}

// Pinned: copies to the device read it when the stream reaches them.
template <typename T>
hipError_t hipHostMalloc(T** memory, size_t bytes) {
  const hipError_t error = gpusim::allocate_for(reinterpret_cast<void**>(memory), bytes, true);
  const std::lock_guard lock(gpusim::pinned_mutex);
  if (*memory != nullptr) gpusim::pinned[reinterpret_cast<const char*>(*memory)] = bytes;
  return error;
}

// Waits for all devices first, as the driver does.
inline hipError_t hipFree(void* memory) {
  gpusim::streams().synchronize_all();
  return gpusim::noted(gpusim::release(memory));
}

inline hipError_t hipHostFree(void* memory) {
  const hipError_t error = hipFree(memory);
  const std::lock_guard lock(gpusim::pinned_mutex);
  gpusim::pinned.erase(static_cast<const char*>(memory));
  return error;
}

// Does not wait: the memory is freed when the stream reaches the call.
inline hipError_t hipFreeAsync(void* memory, hipStream_t stream) {
  if (stream != nullptr && !gpusim::streams().knows(stream)) return gpusim::noted(hipErrorInvalidHandle);
  gpusim::streams().add(gpusim::streams().of(stream), [=] {
    if (gpusim::release(memory) != hipSuccess) gpusim::fail("hipFreeAsync got %p, which is not allocated", memory);
  });
  return hipSuccess;
}

#pragma GCC visibility pop
