#include "transposed_copy.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/TensorUtils.h>
#include <fourfold/program.h>

#include <algorithm>
#include <optional>

#include "values.h"

namespace fourfold::graph {
namespace {

constexpr int64_t least = 1 << 12, shortest = 8;  // elements; of the two dimensions that are transposed
constexpr int64_t worth_a_thread = 1 << 15;       // torch's grain size

// A contiguous copy, as transposes of matrices (rows, columns): rows are neighbours in x, columns in the copy.
struct TransposedCopy {
  int64_t rows = 0, columns = 0;
  int64_t from_step = 0, to_step = 0;  // from column to column, and from row to row
  c10::SmallVector<int64_t, 6> sizes, from_steps, to_steps;  // of the other dimensions, innermost first
  int64_t count = 1;                                         // matrices

  void run(const at::Tensor& x, const at::Tensor& to, int64_t matrix) const;
};

// Nothing for tensors of which torch copies whole lines, or few numbers.
std::optional<TransposedCopy> transposed_copy_of(const at::Tensor& x) {
  const bool is_suitable = is_plain_tensor(x) && x.is_cpu() && !x.is_conj() && !x.is_quantized() && c10::elementSize(x.scalar_type()) <= 8;
  if (!is_suitable || x.numel() < least || x.is_contiguous()) return std::nullopt;
  TransposedCopy made;
  int64_t to_step = 1, inner = -1;
  for (int64_t d = x.dim() - 1; d >= 0; --d) {
    if (x.size(d) == 1) continue;
    if (inner < 0) {
      inner = d;
      made.columns = x.size(d);
      made.from_step = x.stride(d);
    } else if (made.rows == 0 && x.stride(d) == 1) {
      made.rows = x.size(d);
      made.to_step = to_step;
    } else {
      made.sizes.push_back(x.size(d));
      made.from_steps.push_back(x.stride(d));
      made.to_steps.push_back(to_step);
      made.count *= x.size(d);
    }
    to_step *= x.size(d);
  }
  if (made.from_step <= 1 || made.rows < shortest || made.columns < shortest) return std::nullopt;
  return made;
}

void TransposedCopy::run(const at::Tensor& x, const at::Tensor& to, int64_t matrix) const {
  int64_t from_place = 0, to_place = 0;
  for (size_t d = 0; d < sizes.size(); ++d) {
    from_place += matrix % sizes[d] * from_steps[d];
    to_place += matrix % sizes[d] * to_steps[d];
    matrix /= sizes[d];
  }
  const auto size = static_cast<int64_t>(x.itemsize());
  fourfold_transpose_tile(size, static_cast<const char*>(x.const_data_ptr()) + from_place * size, from_step,
                          static_cast<char*>(to.mutable_data_ptr()) + to_place * size, to_step, rows, columns);
}

// Undefined where torch's copy is as fast. into: memory for it, or null.
at::Tensor transposed(const at::Tensor& x, const at::Tensor* into = nullptr) {
  const auto copy = transposed_copy_of(x);
  if (!copy) return {};
  at::Tensor to = into == nullptr ? at::empty(x.sizes(), x.options()) : *into;
  const int64_t grain = std::max<int64_t>(1, worth_a_thread / (copy->rows * copy->columns));
  at::parallel_for(0, copy->count, grain, [&](int64_t begin, int64_t end) {
    for (int64_t matrix = begin; matrix < end; ++matrix) copy->run(x, to, matrix);
  });
  return to;
}

void lay_out(c10::IValue& value) {
  if (!value.isTensor() || !value.toTensor().defined()) return;
  if (at::Tensor copy = transposed(value.toTensor()); copy.defined()) value = std::move(copy);
}

}  // namespace

bool clone_transposed(torch::jit::Stack& stack, PackedWeights* /*own*/, const at::Tensor* into) {
  if (!stack[0].isTensor() || stack[1].toOptional<at::MemoryFormat>() != at::MemoryFormat::Contiguous) return false;
  at::Tensor copy = transposed(stack[0].toTensor(), into);
  if (!copy.defined()) return false;
  stack.clear();
  stack.emplace_back(std::move(copy));
  return true;
}

void lay_out_input(torch::jit::Stack& stack) { lay_out(stack[0]); }

// oneDNN takes channels-last tensors as they are.
void lay_out_convolution(torch::jit::Stack& stack, PackedWeights* /*own*/) {
  const auto is_last = [](const c10::IValue& value) {
    return value.isTensor() && value.toTensor().suggest_memory_format() != at::MemoryFormat::Contiguous;
  };
  if (!is_last(stack[0]) && !is_last(stack[1])) lay_out(stack[0]);
}

void lay_out_reshape(torch::jit::Stack& stack, PackedWeights* /*own*/) {
  const at::Tensor& x = stack[0].toTensor();
  const auto sizes = stack[1].toIntVector();
  const bool is_known = std::all_of(sizes.begin(), sizes.end(), [](int64_t size) { return size > 0; });
  if (is_known && !at::detail::computeStride(x.sizes(), x.strides(), sizes)) lay_out(stack[0]);
}

}  // namespace fourfold::graph
