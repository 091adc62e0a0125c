// The arguments of aten::convolution, checked.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>
#include <c10/util/SmallVector.h>

#include <cstdint>

namespace fourfold::graph {

constexpr size_t most_dims = 3;  // of a window

struct Sizes {
  int64_t at[most_dims] = {1, 1, 1};

  int64_t product() const { return at[0] * at[1] * at[2]; }
};

// The arguments of aten::convolution. Windows of one and two dimensions get leading dimensions of one element.
struct Convolution {
  at::Tensor x, weight, bias;
  Sizes stride, dilation, padding{{0, 0, 0}}, output_padding{{0, 0, 0}};
  bool is_transposed = false;
  int64_t groups = 1;
  size_t dims = 0;
  bool is_last = false;  // channels-last, as the result

  Sizes image, kernel, positions;  // sizes of x, of the window, and of the result
  int64_t batch = 0, channels = 0, outputs = 0;

  bool is_depthwise() const { return groups > 1 && groups == channels; }
  c10::SmallVector<int64_t, 5> result_sizes() const;
};

// Calls f(index) for each index below the sizes, in order.
template <typename F>
void for_each_place(const Sizes& sizes, const F& f) {
  for (int64_t i = 0; i < sizes.at[0]; ++i) {
    for (int64_t j = 0; j < sizes.at[1]; ++j) {
      for (int64_t k = 0; k < sizes.at[2]; ++k) f(Sizes{{i, j, k}});
    }
  }
}

inline bool is_half(at::ScalarType dtype) { return dtype == at::kBFloat16 || dtype == at::kHalf; }

// Calls f with a zero of the tensor's dtype, float32 or float64, or with 16 bits, which can only be copied.
template <typename F>
void visit_dtype(const at::Tensor& tensor, const F& f) {
  if (tensor.scalar_type() == at::kFloat) {
    f(float());
  } else if (is_half(tensor.scalar_type())) {
    f(uint16_t());
  } else {
    f(double());
  }
}

// A tensor's strides behind batch and channels.
inline Sizes last_strides(const at::Tensor& tensor, size_t dims) {
  Sizes strides{{0, 0, 0}};
  for (size_t d = 0; d < dims; ++d) strides.at[most_dims - dims + d] = tensor.stride(static_cast<int64_t>(d) + 2);
  return strides;
}

// A range of places.
struct Places {
  int64_t begin, end;
};

// False for arguments that torch's operator may reject, and for layouts that few_positions.cpp doesn't read.
bool read_convolution(const torch::jit::Stack& stack, Convolution& made);

// Whether a product of few rows is faster than torch's kernel. is_packed: its matrix.
bool has_few_positions(const Convolution& of, bool is_packed);

}  // namespace fourfold::graph
