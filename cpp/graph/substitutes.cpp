// Which operators are computed in another way than by torch's kernels.
#include <ATen/Functions.h>

#include "few_positions.h"
#include "operator_step.h"
#include "packed_layer.h"
#include "padding.h"
#include "small_products.h"
#include "transposed_copy.h"
#include "wide_product.h"

namespace fourfold::graph {
namespace {

// Of a packed product. A small matrix takes torch longer to prepare than to multiply.
constexpr int64_t most_rows_of_bfloat16 = 8;  // processors have instructions for more
constexpr int64_t most_rows = 24, most_rows_of_small = 64, small = 1 << 15;

Matrix as_matrix(const at::Tensor& tensor) {
  return {const_cast<void*>(tensor.const_data_ptr()), tensor.scalar_type(), {tensor.size(0), tensor.size(1)},
          {tensor.stride(0), tensor.stride(1)}};
}

// mm and addmm with a matrix of the model's own.
bool multiply_packed(torch::jit::Stack& stack, PackedWeights& own, const at::Tensor* into) {
  const bool has_bias = stack.size() == 5;
  const size_t first = has_bias ? 1 : 0;
  if (!is_cpu_tensor(stack[first], 2) || !is_cpu_tensor(stack[first + 1], 2)) return false;
  const at::Tensor &a = stack[first].toTensor(), &b = stack[first + 1].toTensor();
  if (a.size(1) != b.size(0) || a.numel() == 0 || b.numel() == 0) return false;
  if (a.size(0) > (b.numel() > small ? most_rows : most_rows_of_small) || !own.may_pack(b.numel())) return false;
  if (a.scalar_type() == at::kBFloat16 && a.size(0) > most_rows_of_bfloat16) return false;
  if (has_bias && (!equals_one(stack[3]) || !equals_one(stack[4]) || !is_cpu_tensor(stack[0]))) return false;
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

}  // namespace

Substitute substitute_of(const c10::OperatorHandle& operation) {
  const c10::OperatorName& name = operation.operator_name();
  if (!name.overload_name.empty()) return nullptr;
  if (name.name == "aten::mm" || name.name == "aten::addmm") return multiply;
  if (name.name == "aten::bmm") return multiply_small_matrices;
  if (name.name == "aten::clone") return clone_transposed;
  if (name.name == "aten::reflection_pad1d") return pad_by_reflection;
  if (name.name == "aten::replication_pad1d") return pad_by_replication;
  return name.name == "aten::convolution" ? convolve_by_products : nullptr;
}

LayOut lay_out_of(const c10::OperatorHandle& operation) {
  const std::string& name = operation.operator_name().name;
  if (const LayOut of_layer = lay_out_of_layer(name); of_layer != nullptr) return of_layer;
  if (name == "aten::convolution") return lay_out_convolution;
  return name == "aten::reshape" ? lay_out_reshape : nullptr;
}

std::vector<size_t> weights_of(const OperatorStep& step) {
  const std::string& name = step.handle.operator_name().name;
  const bool is_product = name == "aten::mm" || name == "aten::addmm" || name == "aten::convolution";
  LayerArguments given{nullptr, name == "aten::addmm" ? size_t{2} : size_t{1}, is_product && step.substitute != nullptr ? size_t{1} : 0, 0};
  if (const auto layer = layer_arguments_of(name)) given = *layer;
  std::vector<size_t> found;
  for (size_t k = given.first; k < given.first + given.count; ++k) {
    const OperatorArgument& argument = step.arguments[k];
    if (argument.index >= 0) found.push_back(static_cast<size_t>(argument.index));
  }
  return found;
}

}  // namespace fourfold::graph
