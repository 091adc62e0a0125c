// A simulated device as libfourfold has it run programs: in the place of the CPU, once somebody asks for that, and waiting for each.
#include <memory>
#include <string>

#include "program/grid_call.h"

extern "C" void gpusim_synchronize();

namespace {

using namespace fourfold::program;

class Waiting final : public LoadedGrid {
 public:
  explicit Waiting(std::unique_ptr<const LoadedGrid> loaded) : loaded_(std::move(loaded)) {}
  void run(const GridRun& run) const override {
    loaded_->run(run);
    gpusim_synchronize();
  }

 private:
  const std::unique_ptr<const LoadedGrid> loaded_;
};

class Simulated final : public GridDevice {
 public:
  explicit Simulated(const GridDevice& device) : device_(device) {}
  std::string target(int32_t index) const override { return device_.target(index); }
  std::unique_ptr<const LoadedGrid> load(int32_t index, const Nest& nest) const override {
    return std::make_unique<Waiting>(device_.load(index, nest));
  }

 private:
  const GridDevice& device_;
};

const GridDevice* served = nullptr;

}  // namespace

extern "C" void gpusim_serve_programs(const void* device) { served = static_cast<const GridDevice*>(device); }

// For ctypes.
extern "C" __attribute__((used, visibility("default"))) void gpusim_run_programs() {
  static const auto* const simulated = new Simulated(*served);
  fourfold_register_grid_device(0, simulated);  // the CPU's number in torch
}
