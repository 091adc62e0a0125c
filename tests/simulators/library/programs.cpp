// A simulated device for libfourfold's programs: once requested, it replaces the CPU and waits after each program.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "program/grid_call.h"

extern "C" void gpusim_synchronize();
// Not under ThreadSanitizer, where tensors are in torch's own memory.
extern "C" __attribute__((weak)) unsigned gpusim_chosen_device();
// Only in the simulator of Metal (metal/framework.h).
__attribute__((weak)) void* gpusim_metal_buffer(void* memory, std::size_t bytes);

namespace {

using namespace fourfold::program;

// The allocation's size is unknown here; the checks know it.
constexpr std::size_t any_length = SIZE_MAX / 2;

// has_addresses: whether the device takes plain addresses, as on the CPU, instead of buffers.
class Waiting final : public LoadedGrid {
 public:
  Waiting(std::unique_ptr<const LoadedGrid> loaded, bool has_addresses) : loaded_(std::move(loaded)), has_addresses_(has_addresses) {}
  void run(const GridRun& run) const override {
    GridRun given = run;
    for (fourfold::Output& tensor : given.tensors) {
      if (!has_addresses_ && tensor.base != nullptr) tensor.base = gpusim_metal_buffer(tensor.base, any_length);
    }
    loaded_->run(given);
    gpusim_synchronize();
  }

 private:
  const std::unique_ptr<const LoadedGrid> loaded_;
  const bool has_addresses_;
};

// The number of a CPU tensor's device says nothing: programs run where new tensors are.
class Simulated final : public GridDevice {
 public:
  Simulated(const GridDevice& device, int32_t index) : device_(device), index_(index) {}
  bool has_addresses() const override { return device_.has_addresses(); }
  std::string target(int32_t) const override { return device_.target(index_); }
  std::unique_ptr<const LoadedGrid> load(int32_t, const Nest& nest) const override {
    return std::make_unique<Waiting>(device_.load(index_, nest), has_addresses());
  }

 private:
  const GridDevice& device_;
  const int32_t index_;
};

const GridDevice* served = nullptr;

}  // namespace

extern "C" void gpusim_serve_programs(const void* device) { served = static_cast<const GridDevice*>(device); }

// For ctypes.
extern "C" __attribute__((used, visibility("default"))) void gpusim_run_programs() {
  const unsigned index = gpusim_chosen_device == nullptr ? 0 : gpusim_chosen_device();
  static const auto* const simulated = new Simulated(*served, static_cast<int32_t>(index));
  fourfold_register_grid_device(0, simulated);  // the CPU's number in torch
}
