// Programs on a GPU: kernels compiled at run time, loaded by the driver and launched on torch's current stream.
#include <torch/headeronly/core/DeviceType.h>

#include <optional>
#include <vector>

#include "driver.cuh"
#include "launch.cuh"
#include "ops/aten.h"
#include "program/grid_call.h"

namespace fourfold::gpu {
namespace {

constexpr size_t most_argument_bytes = 4096;  // the limit of all devices

Place place_on(int32_t index) { return {static_cast<int32_t>(torch::headeronly::DeviceType::CUDA), index}; }

class LoadedKernels final : public program::LoadedGrid {
 public:
  LoadedKernels(int32_t index, const program::Nest& nest) : place_(place_on(index)), nest_(nest) {
    const DeviceGuard guard(place_);
    const CaptureOfOthers relaxed;
    check(place_, cudaFree(nullptr));  // opens the device's context, which the driver's functions need
    check_driver(place_, FOURFOLD_DRIVER(cuModuleLoadData)(&module_, nest.code.data()));
    for (const program::NestKernel& kernel : nest.kernels) {
      CUfunction found = nullptr;
      check_driver(place_, FOURFOLD_DRIVER(cuModuleGetFunction)(&found, module_, kernel.name.c_str()));
      kernels_.push_back(found);
    }
  }

  void run(const program::GridRun& run) const override {
    const DeviceGuard guard(place_);
    const cudaStream_t stream = current_stream(place_);
    // Freed before the kernels have finished: torch's allocator reuses the memory only later on the same stream.
    std::optional<Tensor> scratch;
    if (run.scratch_bytes > 0) scratch = empty(place_, {run.scratch_bytes}, ScalarType::Byte);
    std::vector<uint64_t> arguments(run.numbers.begin(), run.numbers.end());
    for (const fourfold::Output& tensor : run.tensors) arguments.push_back(reinterpret_cast<uintptr_t>(static_cast<void*>(tensor)));
    arguments.push_back(scratch ? reinterpret_cast<uintptr_t>(scratch->mutable_data_ptr()) : 0);
    if (arguments.size() * sizeof(uint64_t) > most_argument_bytes) {
      fail("program: expected tensors and axes whose addresses, sizes and strides take 4096 bytes at most");
    }
    void* parameters[] = {arguments.data()};
    static auto* const launch_kernel = FOURFOLD_DRIVER(cuLaunchKernel);
    for (size_t k = 0; k < kernels_.size(); ++k) {
      if (run.blocks[k] == 0) continue;
      const program::NestKernel& kernel = nest_.kernels[k];
      check_driver(place_, launch_kernel(kernels_[k], static_cast<unsigned>(run.blocks[k]), 1, 1,
                                         static_cast<unsigned>(kernel.threads), 1, 1,
                                         static_cast<unsigned>(kernel.shared_bytes), stream, parameters, nullptr));
    }
  }

 private:
  const Place place_;
  const program::Nest& nest_;
  CUmodule module_ = nullptr;
  std::vector<CUfunction> kernels_;
};

class Gpu final : public program::GridDevice {
 public:
  std::string target(int32_t index) const override { return limits(place_on(index)).target; }
  std::unique_ptr<const program::LoadedGrid> load(int32_t index, const program::Nest& nest) const override {
    return std::make_unique<LoadedKernels>(index, nest);
  }
};

const Gpu gpu;

FOURFOLD_GRID_DEVICE(torch::headeronly::DeviceType::CUDA, gpu);

}  // namespace
}  // namespace fourfold::gpu
