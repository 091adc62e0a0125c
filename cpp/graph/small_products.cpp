#include "small_products.h"

#include <ATen/Functions.h>

#include <algorithm>

#include "values.h"

namespace fourfold::graph {
namespace {

constexpr int64_t most_rows_of_matrices = 4, fewest_columns_of_matrices = 8, most_in_matrices = 1 << 16;

template <typename T>
void multiply_matrices(const at::Tensor& a, const at::Tensor& b, const at::Tensor& result) {
  const int64_t rows = a.size(1), depth = a.size(2), columns = b.size(2), lines = a.size(0) * rows;
  const int64_t steps[] = {a.stride(0), a.stride(1), a.stride(2), b.stride(0), b.stride(1)};
  const auto *const x = static_cast<const T*>(a.const_data_ptr()), *const y = static_cast<const T*>(b.const_data_ptr());
  auto* to = static_cast<T*>(result.mutable_data_ptr());
  for (int64_t row = 0; row < lines; ++row, to += columns) {
    const T* const factors = x + row / rows * steps[0] + row % rows * steps[1];
    const T* line = y + row / rows * steps[3];
    std::fill_n(to, columns, T(0));
    for (int64_t k = 0; k < depth; ++k, line += steps[4]) {
      const T factor = factors[k * steps[2]];
      for (int64_t c = 0; c < columns; ++c) to[c] += factor * line[c];
    }
  }
}

}  // namespace

bool multiply_small_matrices(torch::jit::Stack& stack, PackedWeights* /*own*/, const at::Tensor* into) {
  if (!is_cpu_tensor(stack[0], 3) || !is_cpu_tensor(stack[1], 3)) return false;
  const at::Tensor &a = stack[0].toTensor(), &b = stack[1].toTensor();
  if (a.scalar_type() != b.scalar_type() || (a.scalar_type() != at::kFloat && a.scalar_type() != at::kDouble)) return false;
  if (a.size(0) != b.size(0) || a.size(2) != b.size(1) || b.stride(2) != 1 || a.numel() == 0 || b.numel() == 0) return false;
  if (a.size(1) > most_rows_of_matrices || b.size(2) < fewest_columns_of_matrices || a.size(1) * b.numel() > most_in_matrices) return false;
  at::Tensor result = into == nullptr ? at::empty({a.size(0), a.size(1), b.size(2)}, a.options()) : *into;
  a.scalar_type() == at::kFloat ? multiply_matrices<float>(a, b, result) : multiply_matrices<double>(a, b, result);
  stack.clear();
  stack.emplace_back(std::move(result));
  return true;
}

}  // namespace fourfold::graph
