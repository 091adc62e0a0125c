#include "padding.h"

#include <ATen/Functions.h>

#include <cstring>

#include "convolution.h"
#include "values.h"

namespace fourfold::graph {
namespace {

template <bool reflects, typename T>
void pad_line(const T* from, int64_t size, int64_t before, int64_t after, T* to) {
  for (int64_t k = 0; k < before; ++k) to[k] = from[reflects ? before - k : 0];
  std::memcpy(to + before, from, static_cast<size_t>(size) * sizeof(T));
  for (int64_t k = 0; k < after; ++k) to[before + size + k] = from[reflects ? size - 2 - k : size - 1];
}

// Leaves to torch what it may reject, and what isn't float32 or float64.
template <bool reflects>
bool pad_lines(torch::jit::Stack& stack, const at::Tensor* into) {
  const auto padding = stack[1].toIntVector();
  if (!stack[0].isTensor() || padding.size() != 2) return false;
  const at::Tensor& x = stack[0].toTensor();
  if (!is_plain_tensor(x) || !x.is_cpu() || (x.scalar_type() != at::kFloat && x.scalar_type() != at::kDouble)) return false;
  if ((x.dim() != 2 && x.dim() != 3) || x.numel() == 0 || !x.is_contiguous()) return false;
  const int64_t size = x.size(-1), most = reflects ? size - 1 : int64_t{1} << 32, before = padding[0], after = padding[1];
  if (before < 0 || after < 0 || before > most || after > most) return false;
  c10::SmallVector<int64_t, 3> sizes(x.sizes().begin(), x.sizes().end());
  sizes.back() += before + after;
  at::Tensor result = into == nullptr ? at::empty(sizes, x.options()) : *into;
  visit_dtype(x, [&](auto zero) {
    using T = decltype(zero);
    const auto* from = static_cast<const T*>(x.const_data_ptr());
    auto* to = static_cast<T*>(result.mutable_data_ptr());
    for (int64_t lines = x.numel() / size; lines > 0; --lines, from += size, to += sizes.back()) {
      pad_line<reflects>(from, size, before, after, to);
    }
  });
  stack.clear();
  stack.emplace_back(std::move(result));
  return true;
}

}  // namespace

bool pad_by_reflection(torch::jit::Stack& stack, PackedWeights* /*own*/, const at::Tensor* into) { return pad_lines<true>(stack, into); }
bool pad_by_replication(torch::jit::Stack& stack, PackedWeights* /*own*/, const at::Tensor* into) { return pad_lines<false>(stack, into); }

}  // namespace fourfold::graph
