// Which operators are computed in another way than by torch's kernels.
#include <ATen/Functions.h>

#include <algorithm>

#include "few_positions.h"
#include "operator_step.h"
#include "transposed_copy.h"
#include "wide_product.h"

namespace fourfold::graph {
namespace {

// Of a packed product. A small matrix takes torch longer to prepare than to multiply.
constexpr int64_t most_rows = 24, most_rows_of_small = 64, small = 1 << 15;
// Of bmm.
constexpr int64_t most_rows_of_matrices = 4, fewest_columns_of_matrices = 8, most_in_matrices = 1 << 15;

Matrix as_matrix(const at::Tensor& tensor) {
  return {const_cast<void*>(tensor.const_data_ptr()), tensor.scalar_type(), {tensor.size(0), tensor.size(1)},
          {tensor.stride(0), tensor.stride(1)}};
}

// dims: expected, if any number of them isn't right.
bool is_readable(const c10::IValue& value, int64_t dims = -1) {
  return value.isTensor() && is_plain_tensor(value.toTensor()) && value.toTensor().is_cpu() && (dims < 0 || value.toTensor().dim() == dims);
}

// mm and addmm with a matrix of the model's own.
bool multiply_packed(torch::jit::Stack& stack, PackedWeights& own, const at::Tensor* into) {
  const bool has_bias = stack.size() == 5;
  const size_t first = has_bias ? 1 : 0;
  if (!is_readable(stack[first], 2) || !is_readable(stack[first + 1], 2)) return false;
  const at::Tensor &a = stack[first].toTensor(), &b = stack[first + 1].toTensor();
  if (a.size(1) != b.size(0) || a.numel() == 0 || b.numel() == 0) return false;
  if (a.size(0) > (b.numel() > small ? most_rows : most_rows_of_small) || !own.may_pack(b.numel())) return false;
  if (has_bias && (!equals_one(stack[3]) || !equals_one(stack[4]) || !is_readable(stack[0]))) return false;
  at::Tensor result = into == nullptr ? at::empty({a.size(0), b.size(1)}, a.options()) : *into;
  if (!own.multiply(as_matrix(a), as_matrix(b), has_bias ? &stack[0].toTensor() : nullptr, as_matrix(result))) return false;
  stack.clear();
  stack.emplace_back(std::move(result));
  return true;
}

bool multiply(torch::jit::Stack& stack, PackedWeights* own, const at::Tensor* into) {
  if (own != nullptr && multiply_packed(stack, *own, into)) return true;
  return into == nullptr && has_onednn_products() && multiply_by_onednn(stack);
}

template <typename T>
void multiply_matrices(const at::Tensor& a, const at::Tensor& b, const at::Tensor& result) {
  const int64_t rows = a.size(1), depth = a.size(2), columns = b.size(2);
  const auto *const x = static_cast<const T*>(a.const_data_ptr()), *const y = static_cast<const T*>(b.const_data_ptr());
  auto* to = static_cast<T*>(result.mutable_data_ptr());
  for (int64_t row = 0; row < a.size(0) * rows; ++row, to += columns) {
    const T* const factors = x + row / rows * a.stride(0) + row % rows * a.stride(1);
    const T* line = y + row / rows * b.stride(0);
    std::fill_n(to, columns, T(0));
    for (int64_t k = 0; k < depth; ++k, line += b.stride(1)) {
      const T factor = factors[k * a.stride(2)];
      for (int64_t c = 0; c < columns; ++c) to[c] += factor * line[c];
    }
  }
}

// bmm of small matrices with few rows, as of linear layers in groups: preparing a call takes MKL longer than computing.
bool multiply_small_matrices(torch::jit::Stack& stack, PackedWeights* /*own*/, const at::Tensor* into) {
  if (!is_readable(stack[0], 3) || !is_readable(stack[1], 3)) return false;
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

}  // namespace

Substitute substitute_of(const c10::OperatorHandle& operation) {
  const c10::OperatorName& name = operation.operator_name();
  if (!name.overload_name.empty()) return nullptr;
  if (name.name == "aten::mm" || name.name == "aten::addmm") return multiply;
  if (name.name == "aten::bmm") return multiply_small_matrices;
  if (name.name == "aten::clone") return clone_transposed;
  return name.name == "aten::convolution" ? convolve_few_positions : nullptr;
}

LayOut lay_out_of(const c10::OperatorHandle& operation) {
  const std::string& name = operation.operator_name().name;
  if (name == "fourfold::lstm" || name == "fourfold::gru" || name == "fourfold::lltm") return lay_out_layer;
  if (name == "aten::convolution") return lay_out_convolution;
  return name == "aten::reshape" ? lay_out_reshape : nullptr;
}

std::optional<size_t> weight_of(const OperatorStep& step) {
  const std::string& name = step.handle.operator_name().name;
  const bool is_product = name == "aten::mm" || name == "aten::addmm" || name == "aten::convolution";
  if (step.substitute == nullptr || !is_product) return std::nullopt;
  const int64_t index = step.arguments[name == "aten::addmm" ? 2 : 1].index;
  return index < 0 ? std::nullopt : std::optional<size_t>(index);
}

}  // namespace fourfold::graph
