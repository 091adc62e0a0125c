// Walks an elementwise operation in rows, on torch's threads.
#pragma once

#include <array>
#include <utility>
#include <vector>

#include "cpu/parallel.h"
#include "cpu/kernels/strided.h"
#include "ops/elementwise.h"

namespace fourfold::cpu {

// torch's own figure for a part of an elementwise operation that is worth a thread.
inline constexpr int64_t elementwise_grain = 32768;

template <size_t inputs, typename Row, size_t... k>
void call_row(
    const Elementwise<inputs>& operands, const Row& row, int64_t n, const std::vector<int64_t>& index,
    std::index_sequence<k...>) {
  std::array<char*, inputs + 1> data = operands.addresses();
  const auto& axes = operands.axes();
  for (size_t d = 0; d < axes.size(); ++d) {
    for (size_t operand = 0; operand <= inputs; ++operand) {
      data[operand] += index[d] * axes[d].stride[operand] * operands.element_size();
    }
  }
  row(n, data[0], Strided{data[k + 1], axes.empty() ? 0 : axes.back().stride[k + 1]}...);
}

// Calls row(n, out, inputs…) for runs of elements; out's are contiguous.
template <size_t inputs, typename Row>
void for_each_row(const Elementwise<inputs>& operands, const Row& row) {
  parallel(operands.numel(), elementwise_grain, [&](int64_t begin, int64_t end) {
    const auto& axes = operands.axes();
    std::vector<int64_t> index(axes.size());
    const int64_t length = axes.empty() ? 1 : axes.back().size;
    for (int64_t at = begin; at < end;) {
      int64_t rest = at;
      for (size_t d = axes.size(); d-- > 0; rest /= axes[d].size) index[d] = rest % axes[d].size;
      const int64_t inner = axes.empty() ? 0 : index.back();
      const int64_t n = std::min(length - inner, end - at);
      call_row(operands, row, n, index, std::make_index_sequence<inputs>());
      at += n;
    }
  });
}

}  // namespace fourfold::cpu
