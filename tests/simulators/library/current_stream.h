// torch's current stream on a simulated device.
#pragma once

#include <hip/hip_runtime_api.h>

#include <utility>

namespace gpusim {

// Like a side stream of torch: it waits for no other stream, including the null stream.
inline hipStream_t current_stream(int device) {
  static std::mutex mutex;
  static std::map<int, hipStream_t> streams;
  const std::lock_guard lock(mutex);
  hipStream_t& stream = streams[device];
  if (stream != nullptr) return stream;
  const unsigned before = std::exchange(current_device, static_cast<unsigned>(device));
  (void)hipStreamCreateWithFlags(&stream, hipStreamNonBlocking);
  current_device = before;
  return stream;
}

}  // namespace gpusim
