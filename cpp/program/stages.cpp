// A loop over steps whose stages are programs, products and copies: nothing is allocated or laid out but before the first step.
#include <cstring>
#include <exception>
#include <vector>

#include "program/library.h"

namespace fourfold::program {
namespace {

char* at_step(const fourfold_moving_tensor& given, int64_t bytes, int64_t step) {
  return static_cast<char*>(given.tensor.data) + (given.alternates != 0 ? step % 2 : step) * given.stride * bytes;
}

// A stage's tensors, at the step that it runs next.
class Stage {
 public:
  explicit Stage(const fourfold_stage& given) : inputs_(given.inputs) {
    for (int32_t k = 0; k < given.inputs + given.outputs; ++k) {
      moving_.push_back(given.tensors[k]);
      bytes_.push_back(element_size(kind_of(given.tensors[k].tensor.dtype)));
      now_.push_back(given.tensors[k].tensor);
    }
  }
  virtual ~Stage() = default;

  void run(int64_t step) {
    for (size_t k = 0; k < moving_.size(); ++k) {
      if (moving_[k].stride != 0) now_[k].data = at_step(moving_[k], bytes_[k], step);
    }
    run_now(step);
  }

 protected:
  virtual void run_now(int64_t step) = 0;

  const fourfold_tensor* inputs() const { return now_.data(); }
  const fourfold_tensor* outputs() const { return now_.data() + inputs_; }
  int64_t bytes(size_t k) const { return bytes_[k]; }
  Tensor tensor(size_t k) const {
    const fourfold_tensor& now = now_[k];
    return {now.data, kind_of(now.dtype), now.dim, now.sizes, now.strides};
  }

 private:
  size_t inputs_;
  std::vector<fourfold_moving_tensor> moving_;
  std::vector<int64_t> bytes_;
  std::vector<fourfold_tensor> now_;
};

class ProgramStage final : public Stage {
 public:
  explicit ProgramStage(const fourfold_stage& given)
      : Stage(given), prepared_(prepare(*given.program, inputs(), given.inputs, outputs())) {}

  bool exists() const { return prepared_ != nullptr; }

 private:
  void run_now(int64_t) override { prepared_->run(inputs(), outputs()); }

  const std::unique_ptr<const Prepared> prepared_;
};

class ProductStage final : public Stage {
 public:
  ProductStage(const fourfold_stage& given, const Backend& backend)
      : Stage(given), has_start_(given.inputs > 2), out_(static_cast<size_t>(given.inputs)) {
    const Tensor start = has_start_ ? tensor(2) : Tensor();
    if (backend.product_with != nullptr) product_ = backend.product_with(tensor(1));
    if (product_ != nullptr && !product_->takes(tensor(0), has_start_ ? &start : nullptr, tensor(out_))) product_ = nullptr;
  }

  bool exists() const { return product_ != nullptr; }

 private:
  void run_now(int64_t) override {
    const Tensor start = has_start_ ? tensor(2) : Tensor();
    product_->run(tensor(0), has_start_ ? &start : nullptr, tensor(out_));
  }

  bool has_start_;
  size_t out_;
  std::unique_ptr<const Product> product_;
};

// Row by row where the elements of a row lie side by side, else one by one.
class CopyStage final : public Stage {
 public:
  explicit CopyStage(const fourfold_stage& given) : Stage(given) {
    const fourfold_tensor &from = *inputs(), &to = *outputs();
    exists_ = from.dim == to.dim && from.dtype == to.dtype;
    for (int32_t d = 0; exists_ && d < from.dim; ++d) exists_ = from.sizes[d] == to.sizes[d];
    if (!exists_) return;
    row_axes_ = from.dim;
    while (row_axes_ > 0) {
      const int32_t d = row_axes_ - 1;
      if (from.sizes[d] != 1 && (from.strides[d] != row_ || to.strides[d] != row_)) break;
      row_ *= from.sizes[d];
      --row_axes_;
    }
  }

  bool exists() const { return exists_; }

 private:
  void run_now(int64_t) override { copy(0, static_cast<const char*>(inputs()->data), static_cast<char*>(outputs()->data)); }

  void copy(int32_t axis, const char* from, char* to) const {
    if (axis == row_axes_) {
      if (row_ > 0) std::memcpy(to, from, static_cast<size_t>(row_ * bytes(0)));
      return;
    }
    for (int64_t k = 0; k < inputs()->sizes[axis]; ++k) {
      copy(axis + 1, from + k * inputs()->strides[axis] * bytes(0), to + k * outputs()->strides[axis] * bytes(0));
    }
  }

  bool exists_;
  int32_t row_axes_ = 0;
  int64_t row_ = 1;
};

class FunctionStage final : public Stage {
 public:
  explicit FunctionStage(const fourfold_stage& given) : Stage(given), function_(given.function), context_(given.context) {}

 private:
  void run_now(int64_t step) override { function_(context_, step); }

  void (*function_)(void*, int64_t);
  void* context_;
};

template <typename Made, typename... Arguments>
std::unique_ptr<Stage> stage_if_any(const Arguments&... arguments) {
  auto made = std::make_unique<Made>(arguments...);
  return made->exists() ? std::move(made) : nullptr;
}

std::unique_ptr<Stage> stage_of(const fourfold_stage& given, const Backend& backend) {
  switch (given.kind) {
    case fourfold_stage_program: return stage_if_any<ProgramStage>(given);
    case fourfold_stage_product: return stage_if_any<ProductStage>(given, backend);
    case fourfold_stage_copy: return stage_if_any<CopyStage>(given);
    default: return std::make_unique<FunctionStage>(given);
  }
}

}  // namespace
}  // namespace fourfold::program

using namespace fourfold::program;

int32_t fourfold_stages_run(const fourfold_stage* stages, int32_t count, int64_t steps, int32_t device_type) try {
  const Backend& backend = backend_of(device_type);
  std::vector<std::unique_ptr<Stage>> made;
  for (int32_t k = 0; k < count; ++k) {
    made.push_back(stage_of(stages[k], backend));
    if (made.back() == nullptr) return 2;
  }
  for (int64_t step = 0; step < steps; ++step) {
    for (const auto& stage : made) stage->run(step);
  }
  return 0;
} catch (const std::exception& error) {
  set_error(error.what());
  return 1;
}
