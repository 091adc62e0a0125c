// Puts the simulated devices' memory behind torch's CPU tensors: from here on every tensor lies on a device, and what
// else host code has does not. Without the checks that is the host's memory too, but an operator gives its own tensors
// back before what it has launched runs, so that they too have to last until the stream comes to it.
#include <c10/core/Allocator.h>

#include <atomic>
#include <new>

#include "current_stream.h"

namespace {

std::atomic<unsigned> chosen_device{0};

// When torch's stream comes to it: what was launched there before may still use the memory, as torch's allocator has it.
void give_back(void* memory) {
  if (memory == nullptr) return;
  const unsigned device = GPUSIM_CHECKED ? gpusim::arena().device_of(memory) : 0;  // as torch_gpu.cpp has it
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

// Where tensors are made from now on.
FOR_CTYPES void gpusim_choose_device(unsigned device) { chosen_device = device; }

// A tensor that an operator takes on the CPU, though its others are on a device.
FOR_CTYPES void gpusim_lend_to_host(const void* memory) {
  if (GPUSIM_CHECKED && memory != nullptr) gpusim::arena().lend(memory, true);
}

// The calling thread's, in the kernels' runtime.
FOR_CTYPES int gpusim_current_device() { return static_cast<int>(gpusim::current_device); }
