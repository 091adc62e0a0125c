#include "program/grid_call.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <optional>
#include <stdexcept>

#include "program/grid.h"

namespace fourfold::program {
namespace {

constexpr uintptr_t alignment = 16;  // of tensors whose elements are loaded as vectors

bool are_aligned(const GridDevice& device, const Program& program, const Tensor* inputs, const Tensor* outputs) {
  const bool has_addresses = device.has_addresses();
  const auto is_at_multiple = [&](const Tensor& tensor) {
    const auto start = has_addresses ? 0 : reinterpret_cast<uintptr_t>(tensor.base);
    return (reinterpret_cast<uintptr_t>(tensor.data) - start) % alignment == 0;
  };
  for (size_t k = 0; k < program.inputs.size(); ++k) {
    if (!program.inputs[k].is_number && !is_at_multiple(inputs[k])) return false;
  }
  return std::all_of(outputs, outputs + program.outputs.size(), is_at_multiple);
}

fourfold::Output memory_of(const Tensor& tensor) {
  if (tensor.base == nullptr) return {tensor.data, 0};
  return {tensor.base, static_cast<char*>(tensor.data) - static_cast<char*>(tensor.base)};
}

// The kernels of a layout, or the reason why there are none.
struct Kernels {
  std::unique_ptr<const LoadedGrid> loaded;
  size_t count = 0;
  std::string reason;
};

class GridExecutable final : public Executable {
 public:
  GridExecutable(const GridDevice& device, int32_t index, const Program& program, std::string_view text)
      : device_(device), index_(index), program_(program), nests_(nests_of(text, device.target(index))) {}

  std::unique_ptr<const PreparedCall> prepare(
      const std::vector<int64_t>& sizes, const Tensor* inputs, const Tensor* outputs) const override;
  std::string run_steps(const std::vector<int64_t>& sizes, const Tensor* inputs, const Tensor* outputs,
                        const fourfold_steps& steps) const override {
    const GridLayout layout(program_, sizes, inputs, outputs, are_aligned(inputs, outputs), &steps);
    if (layout.is_empty()) return no_elements;
    const Kernels* const kernels = find(layout.text());
    if (kernels == nullptr) return "no run-time compiler is available";
    if (kernels->loaded == nullptr) return "there are no kernels: " + kernels->reason;
    run(layout, *kernels, inputs, outputs);
    return {};
  }

  std::string layout_of_steps(const std::vector<int64_t>& sizes, const Tensor* inputs, const Tensor* outputs,
                              const fourfold_steps& steps) const override {
    const GridLayout layout(program_, sizes, inputs, outputs, are_aligned(inputs, outputs), &steps);
    return layout.is_empty() ? std::string() : layout.text();
  }

  const Program& program() const { return program_; }
  bool are_aligned(const Tensor* inputs, const Tensor* outputs) const {
    return program::are_aligned(device_, program_, inputs, outputs);
  }

  // A failure to load is recorded and not retried.
  void load(const Nests::Answer& answer, Kernels& kernels) const {
    kernels.reason = answer.reason;
    if (answer.nest == nullptr) return;
    try {
      kernels.loaded = device_.load(index_, *answer.nest);
      kernels.count = answer.nest->kernels.size();
    } catch (const std::exception& error) {
      kernels.reason = error.what();
    }
  }

  // Null if there is no compiler. Found kernels are never removed.
  const Kernels* find(const std::string& layout) const {
    {
      const std::scoped_lock lock(mutex_);
      const auto found = known_.find(layout);
      if (found != known_.end()) return &found->second;
    }
    const auto answer = nests_.find(layout, Generator::llvm);  // waits
    if (!answer.is_final) return nullptr;
    const std::scoped_lock lock(mutex_);
    const auto [place, is_new] = known_.try_emplace(layout);
    if (is_new) load(answer, place->second);
    return &place->second;
  }

  void run(const GridLayout& layout, const Kernels& kernels, const Tensor* inputs, const Tensor* outputs) const {
    GridRun run;
    for (size_t k = 0; k < kernels.count; ++k) run.blocks.push_back(layout.blocks(k, kernels.count));
    run.numbers = layout.numbers(inputs);
    for (size_t k = 0; k < program_.inputs.size(); ++k) {
      run.tensors.push_back(program_.inputs[k].is_number ? fourfold::Output() : memory_of(inputs[k]));
    }
    for (size_t k = 0; k < program_.outputs.size(); ++k) run.tensors.push_back(memory_of(outputs[k]));
    run.scratch_bytes = layout.scratch_bytes();
    kernels.loaded->run(run);
  }

 private:
  const GridDevice& device_;
  const int32_t index_;
  const Program& program_;
  Nests& nests_;
  mutable std::mutex mutex_;
  mutable std::map<std::string, Kernels> known_;  // by layout
};

// A call's layout and its kernels, looked up at the first run.
class KernelsOfLayout {
 public:
  KernelsOfLayout(const GridExecutable& made, GridLayout layout) : made_(made), layout_(std::move(layout)) {}

  const GridLayout& layout() const { return layout_; }

  void run(const Tensor* inputs, const Tensor* outputs) const {
    const Kernels* kernels = kernels_.load(std::memory_order_acquire);
    if (kernels == nullptr) {
      kernels = made_.find(layout_.text());
      if (kernels == nullptr) throw std::invalid_argument("program: expected kernels that are compiled at run time, but no run-time compiler is available");
      kernels_.store(kernels, std::memory_order_release);
    }
    if (kernels->loaded == nullptr) throw std::invalid_argument("program: there are no kernels for these tensors: " + kernels->reason);
    made_.run(layout_, *kernels, inputs, outputs);
  }

 private:
  const GridExecutable& made_;
  const GridLayout layout_;
  mutable std::atomic<const Kernels*> kernels_{nullptr};
};

class GridCall final : public PreparedCall {
 public:
  GridCall(const GridExecutable& made, const std::vector<int64_t>& sizes, const Tensor* inputs, const Tensor* outputs)
      : made_(made), vectors_(made, GridLayout(made.program(), sizes, inputs, outputs, true)) {
    if (vectors_.layout().has_vectors()) numbers_.emplace(made, GridLayout(made.program(), sizes, inputs, outputs, false));
  }

  void run(const Tensor* inputs, const Tensor* outputs) const override {
    if (vectors_.layout().is_empty()) return;
    const bool has_vectors = !numbers_ || made_.are_aligned(inputs, outputs);
    (has_vectors ? vectors_ : *numbers_).run(inputs, outputs);
  }
  const std::string& layout() const override { return vectors_.layout().text(); }

 private:
  const GridExecutable& made_;
  const KernelsOfLayout vectors_;
  std::optional<KernelsOfLayout> numbers_;  // scalar accesses, for unaligned tensors
};

std::unique_ptr<const PreparedCall> GridExecutable::prepare(
    const std::vector<int64_t>& sizes, const Tensor* inputs, const Tensor* outputs) const {
  return std::make_unique<GridCall>(*this, sizes, inputs, outputs);
}

}  // namespace

std::unique_ptr<Executable> compile_grid(const GridDevice& device, int32_t index, const Program& program, std::string_view text) {
  return std::make_unique<GridExecutable>(device, index, program, text);
}

GridRegistration::GridRegistration(int32_t device_type, const GridDevice& device) {
  auto* const backend = new Backend;  // never freed
  backend->grid = &device;
  const BackendRegistration registration(device_type, *backend);
}

}  // namespace fourfold::program

void fourfold_register_grid_device(int32_t device_type, const void* device) {
  using namespace fourfold::program;
  const GridRegistration registration(device_type, *static_cast<const GridDevice*>(device));
}
