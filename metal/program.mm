// Programs on an Apple GPU: macOS compiles the kernels when a program is loaded, and a call encodes them in order,
// after torch's own commands.
#include <torch/headeronly/core/DeviceType.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "encoder.h"
#include "ops/aten.h"
#include "program/grid_call.h"

namespace fourfold::mps {
namespace {

constexpr auto mps = torch::headeronly::DeviceType::MPS;
constexpr const char* label = "fourfold::program";

std::vector<PrintedKernel> names_of(const program::Nest& nest) {
  std::vector<PrintedKernel> kernels;
  for (const program::NestKernel& kernel : nest.kernels) kernels.push_back({kernel.name, kernel.threads});
  return kernels;
}

class LoadedKernels final : public program::LoadedGrid {
 public:
  LoadedKernels(int32_t index, const program::Nest& nest)
      : place_{static_cast<int32_t>(mps), index}, nest_(nest), pipelines_(load(nest.code, names_of(nest))) {}

  // The same parameters as in nest/metal.py: the tensors, the scratch memory that passes results between kernels, and
  // the numbers.
  void run(const program::GridRun& run) const override {
    std::optional<Tensor> scratch;
    if (run.scratch_bytes > 0) scratch = empty(place_, {run.scratch_bytes}, ScalarType::Byte);
    std::vector<Input> buffers(run.tensors.begin(), run.tensors.end());
    buffers.push_back(data_of(scratch));
    bind_all(buffers);
    encode(label, [&](Encoder& encoder) {
      const int count = static_cast<int>(buffers.size());
      for (int k = 0; k < count; ++k) encoder.buffer(k, buffers[static_cast<size_t>(k)]);
      encoder.bytes(count, run.numbers.data(), run.numbers.size() * sizeof(int64_t));
      for (size_t k = 0; k < pipelines_.size(); ++k) dispatch(encoder, k, run.blocks[k]);
    });
  }

 private:
  // Metal requires a buffer for every kernel parameter. Numbers and empty tensors have none, so another buffer is
  // bound, which no kernel accesses through that parameter.
  static void bind_all(std::vector<Input>& buffers) {
    const auto is_there = [](const Input& each) { return each.base != nullptr; };
    const auto found = std::find_if(buffers.begin(), buffers.end(), is_there);
    if (found == buffers.end()) fail("program: expected an output with memory on the GPU");
    const Input any = found->base;
    std::replace_if(buffers.begin(), buffers.end(), [](const Input& each) { return each.base == nullptr; }, any);
  }

  // An encoder's dispatches run in order, and each sees the writes of the earlier ones.
  void dispatch(Encoder& encoder, size_t k, int64_t blocks) const {
    if (blocks == 0) return;
    const program::NestKernel& kernel = nest_.kernels[k];
    encoder.use(pipelines_[k]);
    if (kernel.shared_bytes > 0) encoder.threadgroup_bytes(kernel.shared_bytes);
    encoder.groups(blocks, 1, kernel.threads);
  }

  const Place place_;
  const program::Nest& nest_;
  const std::vector<id<MTLComputePipelineState>> pipelines_;
};

class Gpu final : public program::GridDevice {
 public:
  bool has_addresses() const override { return false; }
  std::string target(int32_t) const override { return "metal"; }
  std::unique_ptr<const program::LoadedGrid> load(int32_t index, const program::Nest& nest) const override {
    return std::make_unique<LoadedKernels>(index, nest);
  }
};

const Gpu gpu;

FOURFOLD_GRID_DEVICE(mps, gpu);

}  // namespace
}  // namespace fourfold::mps
