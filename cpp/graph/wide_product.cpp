#include "wide_product.h"

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>

#include "values.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace fourfold::graph {
namespace {

constexpr int64_t fewest = int64_t{1} << 21;  // multiply-adds: a call of oneDNN costs some microseconds more than MKL's
constexpr int64_t fewest_rows = 32;           // from here on the cost of copying the right matrix is negligible
constexpr int64_t fewest_columns = 96;        // likewise for copying a column-major left matrix
constexpr int64_t least_depth = 16;           // below this a product is bound by writing its result

// Zen 5 and later have full-width 512-bit arithmetic, but on CPUs other than Intel's MKL uses only AVX2 kernels.
bool has_vectors_unknown_to_mkl() {
#if defined(__x86_64__)
  unsigned most = 0, ebx = 0, ecx = 0, edx = 0, version = 0;
  if (__get_cpuid(0, &most, &ebx, &ecx, &edx) == 0 || ebx != signature_AMD_ebx || ecx != signature_AMD_ecx) return false;
  __get_cpuid(1, &version, &ebx, &ecx, &edx);
  const unsigned family = ((version >> 8) & 0xf) + ((version >> 20) & 0xff);
  constexpr unsigned zen_5 = 0x1a;
  return family >= zen_5 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw");
#else
  return false;
#endif
}

const c10::OperatorHandle* linear_of_onednn() {
  static const std::optional<c10::OperatorHandle> found =
      at::hasMKL() && at::hasMKLDNN() && has_vectors_unknown_to_mkl()
          ? c10::Dispatcher::singleton().findSchema({"mkldnn::_linear_pointwise", ""})
          : std::nullopt;
  return found.has_value() ? &*found : nullptr;
}

bool is_plain_float(const at::Tensor& tensor) {
  return is_plain_tensor(tensor) && tensor.device().is_cpu() && tensor.scalar_type() == at::kFloat;
}

// Whether rows or columns are contiguous and don't overlap.
bool is_dense_matrix(const at::Tensor& tensor) {
  if (!is_plain_float(tensor) || tensor.dim() != 2) return false;
  const int64_t row = tensor.stride(0), column = tensor.stride(1);
  return (column == 1 && row >= tensor.size(1)) || (row == 1 && column >= tensor.size(0));
}

// Removes gaps between rows or columns: with gaps oneDNN falls back to its reference implementation, a thousand times
// as slow.
at::Tensor without_gaps(const at::Tensor& tensor) {
  return tensor.stride(0) == 1 ? tensor.t().contiguous().t() : tensor.contiguous();
}

// Whether to compute the transposed product: oneDNN copies a column-major left matrix, and the right one and the result
// are smaller. Gradients of weights are such products.
bool is_better_transposed(const at::Tensor& a, const at::Tensor& b) {
  const int64_t rows = a.size(0), depth = a.size(1), columns = b.size(1);
  return a.stride(0) == 1 && rows * depth > depth * columns + 2 * rows * columns;
}

// a b + bias, if there is one.
at::Tensor product(const at::Tensor& a, const at::Tensor& b, const c10::IValue& bias) {
  torch::jit::Stack stack{
      a, without_gaps(b).t(), bias, "none", c10::List<std::optional<at::Scalar>>(), ""};
  linear_of_onednn()->callBoxed(stack);
  return stack[0].toTensor();
}

// Whether addmm's first argument is the bias of a linear layer.
bool is_bias(const at::Tensor& tensor, int64_t columns) {
  return is_plain_float(tensor) && tensor.dim() == 1 && tensor.size(0) == columns && tensor.stride(0) == 1;
}

}  // namespace

bool has_onednn_products() { return linear_of_onednn() != nullptr; }

bool multiply_by_onednn(torch::jit::Stack& stack) {
  const bool has_bias = stack.size() > 2;
  const size_t first = has_bias ? 1 : 0;
  if (!at::globalContext().userEnabledMkldnn() || !stack[first].isTensor() || !stack[first + 1].isTensor()) return false;
  const at::Tensor &a = stack[first].toTensor(), &b = stack[first + 1].toTensor();
  if (!is_dense_matrix(a) || !is_dense_matrix(b) || a.size(1) != b.size(0) || a.numel() == 0 || b.numel() == 0) return false;
  if (a.size(0) < fewest_rows || a.size(1) < least_depth || a.size(0) * a.size(1) < fewest / b.size(1)) return false;
  const bool is_transposed = !has_bias && is_better_transposed(a, b);
  if (!is_transposed && a.stride(1) != 1 && b.size(1) < fewest_columns) return false;
  if (has_bias) {
    const bool is_plain_sum = stack.size() == 5 && equals_one(stack[3]) && equals_one(stack[4]) && stack[0].isTensor();
    if (!is_plain_sum || !is_bias(stack[0].toTensor(), b.size(1))) return false;
  }
  at::Tensor result = is_transposed ? product(b.t(), a.t(), {}).t().contiguous()
                            : product(a, b, has_bias ? stack[0] : c10::IValue());
  stack.clear();
  stack.emplace_back(std::move(result));
  return true;
}

}  // namespace fourfold::graph
