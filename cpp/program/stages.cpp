// Loops over steps whose stages are programs, products, copies and functions. Everything is allocated and prepared
// before the first step.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "program/library.h"

namespace fourfold::program {
namespace {

char* at_step(const fourfold_moving_tensor& given, int64_t bytes, int64_t step) {
  return static_cast<char*>(given.tensor.data) + (given.period != 0 ? step % given.period : step) * given.stride * bytes;
}

// A stage's tensors, inputs first. All threads of a loop share it.
class Stage {
 public:
  using Now = std::vector<fourfold_tensor>;  // the tensors at one step

  explicit Stage(const fourfold_stage& given) : inputs_(static_cast<size_t>(given.inputs)) {
    for (int32_t k = 0; k < given.inputs + given.outputs; ++k) {
      moving_.push_back(given.tensors[k]);
      bytes_.push_back(element_size(kind_of(given.tensors[k].tensor.dtype)));
      first_.push_back(given.tensors[k].tensor);
    }
  }
  virtual ~Stage() = default;

  const Now& first() const { return first_; }
  // Why the backend can't run it; empty if it can.
  const std::string& obstacle() const { return obstacle_; }
  // Moves `now`, of any step, to this step.
  void move(Now& now, int64_t step) const {
    for (size_t k = 0; k < moving_.size(); ++k) {
      if (moving_[k].stride != 0) now[k].data = at_step(moving_[k], bytes_[k], step);
    }
  }
  // The maximum number of parts that threads can split it into. With one part, one thread runs it and may use others
  // itself.
  virtual int64_t parts() const { return 1; }
  // Whether it has work in this step.
  virtual bool runs_in(int64_t) const { return true; }
  virtual void run(const Now& now, int64_t step, int64_t part, int64_t parts) const = 0;

 protected:
  const fourfold_tensor* outputs_of(const Now& now) const { return now.data() + inputs_; }
  size_t inputs() const { return inputs_; }
  const fourfold_moving_tensor& moving(size_t k) const { return moving_[k]; }
  int64_t bytes(size_t k) const { return bytes_[k]; }
  void refuse(std::string obstacle) { obstacle_ = std::move(obstacle); }
  static Tensor tensor(const fourfold_tensor& now) {
    return {now.data, kind_of(now.dtype), now.dim, now.sizes, now.strides};
  }

 private:
  size_t inputs_;
  std::vector<fourfold_moving_tensor> moving_;
  std::vector<int64_t> bytes_;
  Now first_;
  std::string obstacle_;
};

class ProgramStage final : public Stage {
 public:
  explicit ProgramStage(const fourfold_stage& given) : Stage(given) {
    std::string obstacle;
    prepared_ = prepare(*given.program, first().data(), given.inputs, outputs_of(first()), obstacle);
    if (prepared_ == nullptr) refuse((given.name == nullptr ? "a program" : given.name) + (" " + obstacle));
  }

  int64_t parts() const override { return prepared_->parts(); }

  void run(const Now& now, int64_t, int64_t part, int64_t parts) const override {
    if (parts == 1) return prepared_->run(now.data(), outputs_of(now));
    prepared_->run_part(now.data(), outputs_of(now), part, parts);
  }

 private:
  std::unique_ptr<const Prepared> prepared_;
};

// Computes the products of several independent steps at once: more rows each time the matrix is read. Inputs: a and b
// of one or two products, then start, if there is one.
class ProductStage final : public Stage {
 public:
  ProductStage(const fourfold_stage& given, int64_t steps, const Backend& backend)
      : Stage(given), products_(given.inputs / 2), has_start_(given.inputs % 2 != 0), together_(given.together), steps_(steps) {
    std::vector<Tensor> matrices;
    for (int k = 0; k < products_; ++k) matrices.push_back(tensor(first()[2 * static_cast<size_t>(k) + 1]));
    if (backend.product_with != nullptr) product_ = backend.product_with(matrices.data(), products_, rows());
    const Tensor start = start_of(first());
    const Factors a = factors_of(first());
    const bool runs = product_ != nullptr && product_->takes(a.data(), has_start_ ? &start : nullptr, tensor(*outputs_of(first())));
    if (!runs) refuse("a product has a dtype or a memory layout that packed products don't support");
  }

  int64_t parts() const override { return product_->parts(rows()); }
  bool runs_in(int64_t step) const override { return step % together_ == 0; }

  void run(const Now& now, int64_t step, int64_t part, int64_t parts) const override {
    const Tensor start = start_of(now);
    const Tensor* const starts = has_start_ ? &start : nullptr;
    const int64_t count = std::min(together_, steps_ - step);
    if (count == 1) return product_->run(factors_of(now).data(), starts, tensor(*outputs_of(now)), part, parts);
    const Rows a = rows_of(now[0], moving(0), bytes(0), count);
    const Rows out = rows_of(*outputs_of(now), moving(inputs()), bytes(inputs()), count);
    if (a.lie_evenly && out.lie_evenly) {
      const Tensor all = a.tensor();
      return product_->run(&all, starts, out.tensor(), part, parts);
    }
    for (int64_t k = 0; k < count; ++k) {
      const Tensor from = shifted(now[0], k * moving(0).stride * bytes(0));
      product_->run(&from, starts, shifted(*outputs_of(now), k * moving(inputs()).stride * bytes(inputs())), part, parts);
    }
  }

 private:
  using Factors = std::array<Tensor, 2>;

  Factors factors_of(const Now& now) const { return {tensor(now[0]), products_ > 1 ? tensor(now[2]) : Tensor()}; }
  Tensor start_of(const Now& now) const { return has_start_ ? tensor(now[inputs() - 1]) : Tensor(); }

  // The number of rows multiplied at once.
  int64_t rows() const {
    const fourfold_tensor& out = *outputs_of(first());
    return out.dim < 2 ? 1 : out.sizes[out.dim - 2] * together_;
  }

  // The rows of several steps as one matrix; lie_evenly: whether all rows have the same distance.
  struct Rows {
    fourfold_tensor first;
    int64_t sizes[2];
    int64_t strides[2];
    bool lie_evenly;

    Tensor tensor() const { return {first.data, kind_of(first.dtype), 2, sizes, strides}; }
  };

  static Rows rows_of(fourfold_tensor now, const fourfold_moving_tensor& moving, int64_t bytes, int64_t count) {
    const int64_t rows = now.sizes[0], step = std::abs(moving.stride), stride = rows == 1 ? step : now.strides[0];
    // In a backward loop the last of the steps comes first in memory.
    if (moving.stride < 0) now.data = static_cast<char*>(now.data) + (count - 1) * moving.stride * bytes;
    return {now, {rows * count, now.sizes[1]}, {stride, now.strides[1]}, rows * stride == step};
  }

  static Tensor shifted(fourfold_tensor now, int64_t bytes) {
    now.data = static_cast<char*>(now.data) + bytes;
    return tensor(now);
  }

  int products_;
  bool has_start_;
  int64_t together_;
  int64_t steps_;
  std::unique_ptr<const Product> product_;
};

// Copies contiguous innermost axes with one memcpy, other elements one by one.
class CopyStage final : public Stage {
 public:
  explicit CopyStage(const fourfold_stage& given) : Stage(given) {
    const fourfold_tensor &from = first()[0], &to = first()[1];
    const bool is_same = from.dim == to.dim && from.dtype == to.dtype && std::equal(from.sizes, from.sizes + from.dim, to.sizes);
    if (!is_same) {
      refuse("a copy's tensors differ in dtype or size");
      return;
    }
    row_axes_ = from.dim;
    while (row_axes_ > 0) {
      const int32_t d = row_axes_ - 1;
      if (from.sizes[d] != 1 && (from.strides[d] != row_ || to.strides[d] != row_)) break;
      row_ *= from.sizes[d];
      --row_axes_;
    }
  }

  void run(const Now& now, int64_t, int64_t, int64_t) const override {
    copy(now, 0, static_cast<const char*>(now[0].data), static_cast<char*>(now[1].data));
  }

 private:
  void copy(const Now& now, int32_t axis, const char* from, char* to) const {
    if (axis == row_axes_) {
      if (row_ > 0) std::memcpy(to, from, static_cast<size_t>(row_ * bytes(0)));
      return;
    }
    for (int64_t k = 0; k < now[0].sizes[axis]; ++k) {
      copy(now, axis + 1, from + k * now[0].strides[axis] * bytes(0), to + k * now[1].strides[axis] * bytes(0));
    }
  }

  int32_t row_axes_ = 0;
  int64_t row_ = 1;
};

class FunctionStage final : public Stage {
 public:
  explicit FunctionStage(const fourfold_stage& given) : Stage(given), function_(given.function), context_(given.context) {}

  void run(const Now&, int64_t step, int64_t, int64_t) const override { function_(context_, step); }

 private:
  void (*function_)(void*, int64_t);
  void* context_;
};

std::unique_ptr<Stage> stage_of(const fourfold_stage& given, int64_t steps, const Backend& backend) {
  switch (given.kind) {
    case fourfold_stage_program: return std::make_unique<ProgramStage>(given);
    case fourfold_stage_product: return std::make_unique<ProductStage>(given, steps, backend);
    case fourfold_stage_copy: return std::make_unique<CopyStage>(given);
    default: return std::make_unique<FunctionStage>(given);
  }
}

using Stages = std::vector<std::unique_ptr<Stage>>;

// One thread alone. A stage may use others itself.
class OnlyMember final : public Member {
 public:
  int64_t begin() const override { return 0; }
  int64_t end() const override { return 1; }
  int64_t shares() const override { return 1; }
  void wait() override {}
};

// parts: the maximum for each stage. The first member runs stages with one part.
void run_shares(const Stages& stages, const std::vector<int64_t>& parts, int64_t steps, Member& member) {
  std::vector<Stage::Now> now;
  for (const auto& stage : stages) now.push_back(stage->first());
  for (int64_t step = 0; step < steps; ++step) {
    for (size_t k = 0; k < stages.size(); ++k) {
      if (!stages[k]->runs_in(step)) continue;
      const int64_t count = std::min(parts[k], member.shares()), end = std::min(count, member.end());
      if (member.begin() < end) stages[k]->move(now[k], step);
      for (int64_t part = member.begin(); part < end; ++part) stages[k]->run(now[k], step, part, count);
      member.wait();
    }
  }
}

// Functions call torch, which has threads of its own.
void run(const Stages& stages, bool has_functions, int64_t steps, const Backend& backend) {
  std::vector<int64_t> parts;
  for (const auto& stage : stages) parts.push_back(std::max<int64_t>(stage->parts(), 1));
  const int64_t shares = *std::max_element(parts.begin(), parts.end());
  if (shares > 1 && !has_functions && backend.together != nullptr) {
    return backend.together(shares, [&](Member& member) { run_shares(stages, parts, steps, member); });
  }
  OnlyMember alone;
  run_shares(stages, parts, steps, alone);
}

}  // namespace
}  // namespace fourfold::program

using namespace fourfold::program;

int32_t fourfold_stages_run(const fourfold_stage* stages, int32_t count, int64_t steps, int32_t device_type) try {
  const Backend& backend = backend_of(device_type);
  Stages made;
  bool has_functions = false;
  for (int32_t k = 0; k < count; ++k) {
    made.push_back(stage_of(stages[k], steps, backend));
    if (!made.back()->obstacle().empty()) {
      set_error(made.back()->obstacle().c_str());
      return 2;
    }
    has_functions = has_functions || stages[k].kind == fourfold_stage_function;
  }
  if (count > 0 && steps > 0) run(made, has_functions, steps, backend);
  return 0;
} catch (const std::exception& error) {
  set_error(error.what());
  return 1;
}
