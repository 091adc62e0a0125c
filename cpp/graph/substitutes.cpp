// Which operators are computed in another way than by torch's kernels.
#include <ATen/Functions.h>

#include "few_positions.h"
#include "operator_step.h"
#include "wide_product.h"

namespace fourfold::graph {
namespace {

// Of a packed product. A small matrix takes torch longer to prepare than to multiply.
constexpr int64_t most_rows = 24, most_rows_of_small = 64, small = 1 << 15;

Matrix as_matrix(const at::Tensor& tensor) {
  return {const_cast<void*>(tensor.const_data_ptr()), tensor.scalar_type(), {tensor.size(0), tensor.size(1)},
          {tensor.stride(0), tensor.stride(1)}};
}

bool is_readable(const c10::IValue& value) {
  return value.isTensor() && is_plain_tensor(value.toTensor()) && value.toTensor().is_cpu();
}

bool is_readable_matrix(const c10::IValue& value) { return is_readable(value) && value.toTensor().dim() == 2; }

// mm and addmm with a matrix of the model's own.
bool multiply_packed(torch::jit::Stack& stack, PackedWeights& own) {
  if (!is_packed_product(stack, own)) return false;
  const size_t first = stack.size() == 5 ? 1 : 0;
  const at::Tensor& a = stack[first].toTensor();
  at::Tensor result = at::empty({a.size(0), stack[first + 1].toTensor().size(1)}, a.options());
  if (!multiply_into(stack, own, result)) return false;
  stack.clear();
  stack.emplace_back(std::move(result));
  return true;
}

bool multiply(torch::jit::Stack& stack, PackedWeights* own) {
  return (own != nullptr && multiply_packed(stack, *own)) || (has_onednn_products() && multiply_by_onednn(stack));
}

}  // namespace

bool is_packed_product(const torch::jit::Stack& stack, const PackedWeights& own) {
  const bool has_bias = stack.size() == 5;
  const size_t first = has_bias ? 1 : 0;
  if (!is_readable_matrix(stack[first]) || !is_readable_matrix(stack[first + 1])) return false;
  const at::Tensor &a = stack[first].toTensor(), &b = stack[first + 1].toTensor();
  if (a.size(1) != b.size(0) || a.numel() == 0 || b.numel() == 0) return false;
  if (a.size(0) > (b.numel() > small ? most_rows : most_rows_of_small) || !own.may_pack(b.numel())) return false;
  return !has_bias || (equals_one(stack[3]) && equals_one(stack[4]) && is_readable(stack[0]));
}

bool multiply_into(const torch::jit::Stack& stack, PackedWeights& own, const at::Tensor& result) {
  const bool has_bias = stack.size() == 5;
  const size_t first = has_bias ? 1 : 0;
  const Matrix a = as_matrix(stack[first].toTensor()), b = as_matrix(stack[first + 1].toTensor());
  return own.multiply(a, b, has_bias ? &stack[0].toTensor() : nullptr, as_matrix(result));
}

Substitute substitute_of(const c10::OperatorHandle& operation) {
  const c10::OperatorName& name = operation.operator_name();
  if (!name.overload_name.empty()) return nullptr;
  if (name.name == "aten::mm" || name.name == "aten::addmm") return multiply;
  return name.name == "aten::convolution" ? convolve_few_positions : nullptr;
}

std::optional<size_t> weight_of(const OperatorStep& step) {
  if (step.substitute == nullptr) return std::nullopt;
  const int64_t index = step.arguments[step.handle.operator_name().name == "aten::addmm" ? 2 : 1].index;
  return index < 0 ? std::nullopt : std::optional<size_t>(index);
}

}  // namespace fourfold::graph
