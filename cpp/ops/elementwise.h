// Walks the elements of tensors that broadcast to one shape, in rows that a kernel takes.
#pragma once

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "ops/aten.h"

namespace fourfold {

// torch's own figure for a part of an elementwise operation that is worth a thread.
inline constexpr int64_t elementwise_grain = 32768;

template <size_t inputs>
class Elementwise {
 public:
  // `out` is newly allocated, so dense. Each input's shape broadcasts to out's; dtypes agree.
  Elementwise(const Tensor& out, const std::array<const Tensor*, inputs>& in)
      : numel_(out.numel()), element_size_(static_cast<int64_t>(out.element_size())) {
    data_[0] = static_cast<char*>(out_data(out));
    for (size_t k = 0; k < inputs; ++k) data_[k + 1] = static_cast<char*>(const_cast<void*>(data_of(*in[k])));
    const auto sizes = out.sizes();
    const auto strides = out.strides();
    const auto dim = static_cast<int64_t>(sizes.size());
    for (int64_t d = 0; d < dim; ++d) {
      Axis axis{sizes[d], {strides[d]}};
      if (axis.size == 1) continue;
      for (size_t k = 0; k < inputs; ++k) axis.stride[k + 1] = broadcast_stride(*in[k], d - dim);
      axes_.push_back(axis);
    }
    std::stable_sort(axes_.begin(), axes_.end(), [](const Axis& a, const Axis& b) { return a.stride[0] > b.stride[0]; });
    merge_axes();
  }

  // Calls row(n, out, inputs…) for runs of elements; out's are contiguous.
  template <typename Row>
  void run(const Row& row) const {
    parallel(numel_, elementwise_grain, [&](int64_t begin, int64_t end) {
      std::vector<int64_t> index(axes_.size());
      const int64_t length = axes_.empty() ? 1 : axes_.back().size;
      for (int64_t at = begin; at < end;) {
        locate(at, index);
        const int64_t inner = axes_.empty() ? 0 : index.back();
        const int64_t n = std::min(length - inner, end - at);
        call_row(row, n, index, std::make_index_sequence<inputs>());
        at += n;
      }
    });
  }

 private:
  struct Axis {
    int64_t size;
    std::array<int64_t, inputs + 1> stride;  // out's first
  };

  static int64_t broadcast_stride(const Tensor& x, int64_t from_last) {
    const int64_t d = x.dim() + from_last;
    return d < 0 || x.sizes()[d] == 1 ? 0 : x.strides()[d];
  }

  // Two axes that every operand steps through as through one become one, so that rows are long.
  void merge_axes() {
    size_t last = 0;
    for (size_t d = 1; d < axes_.size(); ++d) {
      const Axis& outer = axes_[last];
      const Axis& inner = axes_[d];
      bool mergeable = true;
      for (size_t k = 0; k <= inputs; ++k) mergeable = mergeable && outer.stride[k] == inner.stride[k] * inner.size;
      if (mergeable) {
        axes_[last] = {outer.size * inner.size, inner.stride};
      } else {
        axes_[++last] = inner;
      }
    }
    if (!axes_.empty()) axes_.resize(last + 1);
  }

  void locate(int64_t at, std::vector<int64_t>& index) const {
    for (size_t d = axes_.size(); d-- > 0;) {
      index[d] = at % axes_[d].size;
      at /= axes_[d].size;
    }
  }

  template <typename Row, size_t... k>
  void call_row(const Row& row, int64_t n, const std::vector<int64_t>& index, std::index_sequence<k...>) const {
    std::array<char*, inputs + 1> data = data_;
    for (size_t d = 0; d < axes_.size(); ++d) {
      for (size_t operand = 0; operand <= inputs; ++operand) {
        data[operand] += index[d] * axes_[d].stride[operand] * element_size_;
      }
    }
    row(n, data[0], cpu::Strided{data[k + 1], axes_.empty() ? 0 : axes_.back().stride[k + 1]}...);
  }

  int64_t numel_;
  int64_t element_size_;
  std::array<char*, inputs + 1> data_;
  std::vector<Axis> axes_;
};

}  // namespace fourfold
