// The elements of tensors that broadcast to one shape, described for a backend's kernel.
#pragma once

#include <algorithm>
#include <array>
#include <vector>

#include "ops/aten.h"

namespace fourfold {

template <size_t inputs>
class Elementwise {
 public:
  struct Axis {
    int64_t size;
    std::array<int64_t, inputs + 1> stride;  // in elements; out's first
  };

  // `out` is newly allocated, so dense. Each input's shape broadcasts to out's; dtypes agree.
  Elementwise(const Tensor& out, const std::array<const Tensor*, inputs>& in)
      : place_(place_of(out)),
        kind_(kind_of(out.scalar_type())),
        numel_(out.numel()),
        element_size_(static_cast<int64_t>(out.element_size())),
        out_(out_data(out)) {
    for (size_t k = 0; k < inputs; ++k) in_[k] = data_of(*in[k]);
    if (numel_ == 0) return;  // nothing of what follows is read, and its sizes may be of any product
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

  Place place() const { return place_; }
  Kind kind() const { return kind_; }
  int64_t numel() const { return numel_; }
  int64_t element_size() const { return element_size_; }
  // Outermost first. Two that every operand steps through as through one are one; none has size 1.
  const std::vector<Axis>& axes() const { return axes_; }
  Output out() const { return out_; }
  const std::array<Input, inputs>& in() const { return in_; }
  // All of them, out's first, in memory that has addresses. The inputs are only read.
  std::array<char*, inputs + 1> addresses() const {
    std::array<char*, inputs + 1> result{static_cast<char*>(out_)};
    for (size_t k = 0; k < inputs; ++k) result[k + 1] = static_cast<char*>(const_cast<void*>(static_cast<const void*>(in_[k])));
    return result;
  }

 private:
  static int64_t broadcast_stride(const Tensor& x, int64_t from_last) {
    const int64_t d = x.dim() + from_last;
    return d < 0 || x.sizes()[d] == 1 ? 0 : x.strides()[d];
  }

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

  Place place_;
  Kind kind_;
  int64_t numel_;
  int64_t element_size_;
  Output out_;
  std::array<Input, inputs> in_;
  std::vector<Axis> axes_;
};

}  // namespace fourfold
