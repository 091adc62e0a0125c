// torch's tensors and operators through its stable ABI: allocation, conversion, and the vendor's products.
// A failed call throws std::runtime_error with torch's own reason.
#pragma once

#include <optional>
#include <vector>

#include "ops/check.h"
#include "ops/kind.h"

namespace fourfold {

using Sizes = std::initializer_list<int64_t>;
using OptionalTensor = std::optional<Tensor>;

// Throws what a failed call of torch's C functions has to say.
void check_call(int32_t code, const char* what);

Place place_of(const Tensor& x);

// New, uninitialised, contiguous.
Tensor empty(Place place, Sizes sizes, ScalarType dtype);
Tensor empty(Place place, const int64_t* sizes, const int64_t* strides, int64_t dim, ScalarType dtype);
Tensor zeros(Place place, Sizes sizes, ScalarType dtype);
// What an operator returns in place of a tensor that it was told to leave out: shape (0).
Tensor nothing(Place place, ScalarType dtype);

// With x's shape and strides where these are dense, as torch.empty_like.
Tensor empty_like(const Tensor& x, ScalarType dtype);
// x itself where it is contiguous and of that dtype already.
Tensor contiguous(const Tensor& x);
Tensor convert(const Tensor& x, ScalarType dtype);

// The dtype of an operator's sums, and of its products where a backend has none in 16 bits: float32 for float16 and
// bfloat16.
ScalarType compute_dtype(ScalarType dtype);
// x as a kernel takes it: contiguous, in the dtype that the call computes in.
Tensor prepared(const Tensor& x, ScalarType dtype);
OptionalTensor prepared(const OptionalTensor& x, ScalarType dtype);

// A bias of shape (size) or (1, size) as a product takes it, and a gradient of shape (size) in the bias's own shape.
OptionalTensor flat_bias(const OptionalTensor& bias, ScalarType dtype);
Tensor like_bias(const Tensor& grad, const Tensor& bias);
// A gradient as a backward returns it: in x's dtype, shape (0) where it is left out or not wanted; that of a bias, if
// there is one, in the bias's own shape.
Tensor returned(bool wanted, const OptionalTensor& grad, const Tensor& x);
Tensor returned(bool wanted, const OptionalTensor& grad, const Tensor& x, const OptionalTensor& bias);

ScalarType result_type(const Tensor& x, const Tensor& y);

// Views, which torch's dispatcher sees nothing of: a call of it by an operator's name takes microseconds.
Tensor narrow(const Tensor& x, int64_t dim, int64_t start, int64_t length);
Tensor transposed(const Tensor& x);  // of two dimensions
Tensor view(const Tensor& x, Sizes sizes);  // of what is contiguous
Tensor view(const Tensor& x, const std::vector<int64_t>& sizes);

// x Wᵀ + b, a b, aᵀ b, and the sum of a's rows, in their arguments' dtype.
Tensor linear(const Tensor& x, const Tensor& weights, const OptionalTensor& bias);
Tensor mm(const Tensor& a, const Tensor& b);
Tensor mm_transposed(const Tensor& a, const Tensor& b);
// a b and aᵀ b into `out`, which may be some columns of a wider matrix.
void mm_into(const Tensor& out, const Tensor& a, const Tensor& b);
void mm_transposed_into(const Tensor& out, const Tensor& a, const Tensor& b);
Tensor sum_rows(const Tensor& a);

Kind kind_of(ScalarType dtype);
ScalarType dtype_of(Kind kind);

// Memory of a job's as a matrix, for torch's products. It does not own the memory.
Tensor matrix(Place place, Input data, int64_t rows, int64_t columns, int64_t leading_dim, Kind kind);
// What `from` holds, converted, into `to`.
void copy_into(const Tensor& to, const Tensor& from);

// Null for a tensor that is left out, which is how kernels are told so.
Input data_of(const Tensor& x);
Input data_of(const OptionalTensor& x);
Output out_data(const Tensor& x);

}  // namespace fourfold
