// Allocates torch's CPU tensors in the simulated devices' memory: from here on every tensor is on a device, unlike
// other host memory. Without the checks both are host memory, but operators free their temporary tensors before their
// launches run, so these must last until the stream reaches the end of their use.
#include <c10/core/Allocator.h>

#include <atomic>
#include <new>

#include "current_stream.h"

namespace {

std::atomic<unsigned> chosen_device{0};

// When torch's stream reaches this point: earlier launches on it may still use the memory, as with torch's allocator.
void give_back(void* memory) {
  if (memory == nullptr) return;
  const unsigned device = GPUSIM_CHECKED ? gpusim::arena().device_of(memory) : 0;  // as in torch_gpu.cpp
  const hipStream_t stream = gpusim::current_stream(static_cast<int>(device));
  if (hipStreamQuery(stream) == hipSuccess) (void)gpusim::release(memory);
  else (void)hipFreeAsync(memory, stream);
}

class DeviceAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    void* memory = bytes == 0 ? nullptr : gpusim::allocate(chosen_device, bytes, false);
    if (bytes != 0 && memory == nullptr) throw std::bad_alloc();
    return {memory, memory, &give_back, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &give_back; }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }
};

[[maybe_unused]] const bool served = [] {
  static DeviceAllocator allocator;
  c10::SetAllocator(c10::DeviceType::CPU, &allocator, 1);
  return true;
}();

}  // namespace

#define FOR_CTYPES extern "C" __attribute__((used, visibility("default")))

// The device of new tensors.
FOR_CTYPES void gpusim_choose_device(unsigned device) { chosen_device = device; }
extern "C" unsigned gpusim_chosen_device() { return chosen_device; }

// A tensor that an operator expects on the CPU, although its others are on a device.
FOR_CTYPES void gpusim_lend_to_host(const void* memory) {
  if (GPUSIM_CHECKED && memory != nullptr) gpusim::arena().lend(memory, true);
}

// The calling thread's current device in the kernels' runtime.
FOR_CTYPES int gpusim_current_device() { return static_cast<int>(gpusim::current_device); }
