// torch's tensors and operators through its stable ABI: allocation, conversion, and the vendor's products.
// A failed call throws std::runtime_error with torch's own reason.
#pragma once

#include <optional>
#include <vector>

#include "cpu/parallel.h"
#include "cpu/strided.h"
#include "ops/check.h"

namespace fourfold {

using Sizes = std::initializer_list<int64_t>;
using OptionalTensor = std::optional<Tensor>;

// Throws what a failed call of torch's C functions has to say.
void check_call(int32_t code, const char* what);

// New, uninitialised, contiguous, on the CPU.
Tensor empty(Sizes sizes, ScalarType dtype);
Tensor empty(const int64_t* sizes, const int64_t* strides, int64_t dim, ScalarType dtype);
Tensor zeros(Sizes sizes, ScalarType dtype);
// What an operator returns in place of a tensor that it was told to leave out: shape (0).
Tensor nothing(ScalarType dtype);

// With x's shape and strides where these are dense, as torch.empty_like.
Tensor empty_like(const Tensor& x, ScalarType dtype);
// A copy, contiguous.
Tensor clone(const Tensor& x);
// x itself where it is contiguous and of that dtype already.
Tensor contiguous(const Tensor& x);
Tensor convert(const Tensor& x, ScalarType dtype);

// The dtype in which an operator with products computes: float32 for float16 and bfloat16.
ScalarType compute_dtype(ScalarType dtype);
// x as a kernel takes it: contiguous, in the dtype that the call computes in.
Tensor prepared(const Tensor& x, ScalarType dtype);
OptionalTensor prepared(const OptionalTensor& x, ScalarType dtype);

// A bias of shape (size) or (1, size) as a product takes it, and a gradient of shape (size) in the bias's own shape.
OptionalTensor flat_bias(const OptionalTensor& bias, ScalarType dtype);
Tensor like_bias(const Tensor& grad, const Tensor& bias);

ScalarType result_type(const Tensor& x, const Tensor& y);

// Views.
Tensor narrow(const Tensor& x, int64_t dim, int64_t start, int64_t length);
Tensor view(const Tensor& x, Sizes sizes);
Tensor view(const Tensor& x, const std::vector<int64_t>& sizes);

// x Wᵀ + b, a b, aᵀ b, and the sum of a's rows, in their arguments' dtype: float32 or float64.
Tensor linear(const Tensor& x, const Tensor& weights, const OptionalTensor& bias);
Tensor mm(const Tensor& a, const Tensor& b);
Tensor mm_transposed(const Tensor& a, const Tensor& b);
Tensor sum_rows(const Tensor& a);

cpu::Kind kind_of(ScalarType dtype);

// Null for a tensor that is left out, which is how kernels are told so.
inline const void* data_of(const OptionalTensor& x) { return x ? x->const_data_ptr() : nullptr; }
inline const void* data_of(const Tensor& x) { return x.const_data_ptr(); }
inline void* out_data(const Tensor& x) { return x.mutable_data_ptr(); }

using cpu::parallel;

}  // namespace fourfold
