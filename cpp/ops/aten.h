// torch's tensors and operators through its stable ABI: allocation, conversion, and the vendor libraries' matrix
// products. A failed call throws std::runtime_error with torch's error message.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ops/check.h"
#include "ops/kind.h"

namespace fourfold {

using Sizes = std::initializer_list<int64_t>;
using OptionalTensor = std::optional<Tensor>;

// Throws torch's error message if a call of its C functions failed. what: names the call.
void check_call(int32_t code, const char* what);

// The text of a string argument, which it frees. Operators take the handle itself, because torch's conversion of string
// arguments leaks the string.
std::string text_of(StringHandle handle);

Place place_of(const Tensor& x);

std::vector<int64_t> contiguous_strides(const int64_t* sizes, size_t dim);

// New tensors, contiguous unless strides are given; empty() leaves them uninitialised.
Tensor empty(Place place, Sizes sizes, ScalarType dtype);
Tensor empty(Place place, const int64_t* sizes, const int64_t* strides, int64_t dim, ScalarType dtype);
Tensor zeros(Place place, Sizes sizes, ScalarType dtype);
// A tensor of shape (0), which an operator returns for results that aren't requested.
Tensor nothing(Place place, ScalarType dtype);

// Like torch.empty_like: x's shape, and x's strides if they are dense.
Tensor empty_like(const Tensor& x, ScalarType dtype);
// Return x itself if it is already contiguous, or of that dtype.
Tensor contiguous(const Tensor& x);
Tensor convert(const Tensor& x, ScalarType dtype);

// The dtype of an operator's accumulation, and of its products on backends without 16-bit products: float32 for float16
// and bfloat16.
ScalarType compute_dtype(ScalarType dtype);
// x as a kernel argument: contiguous, in the compute dtype.
Tensor prepared(const Tensor& x, ScalarType dtype);
OptionalTensor prepared(const OptionalTensor& x, ScalarType dtype);

// x as contiguous rows (rows, size) in that dtype; and rows (rows, last) reshaped to x's leading dimensions.
Tensor as_rows(const Tensor& x, int64_t rows, int64_t size, ScalarType dtype);
Tensor unflatten_rows(const Tensor& rows, const Tensor& x, int64_t last);

// A bias of shape (size) or (1, size), flattened for a product; and a gradient of shape (size) in the shape of its
// bias.
OptionalTensor flat_bias(const OptionalTensor& bias, ScalarType dtype);
Tensor like_bias(const Tensor& grad, const Tensor& bias);
// A gradient as a result of a backward: in x's dtype; shape (0) if it is absent or not wanted; with a bias, in its
// shape.
Tensor returned(bool wanted, const OptionalTensor& grad, const Tensor& x);
Tensor returned(bool wanted, const OptionalTensor& grad, const Tensor& x, const OptionalTensor& bias);

ScalarType result_type(const Tensor& x, const Tensor& y);

// Views without torch's dispatcher: a dispatcher call by name takes microseconds.
Tensor narrow(const Tensor& x, int64_t dim, int64_t start, int64_t length);
Tensor transposed(const Tensor& x);  // of two dimensions
Tensor view(const Tensor& x, Sizes sizes);  // x must be contiguous
Tensor view(const Tensor& x, const std::vector<int64_t>& sizes);

// x Wᵀ + b, a b, aᵀ b, and the sum of a's rows, in the arguments' dtype.
Tensor linear(const Tensor& x, const Tensor& weights, const OptionalTensor& bias);
Tensor mm(const Tensor& a, const Tensor& b);
Tensor mm_transposed(const Tensor& a, const Tensor& b);
// Write a b and aᵀ b into `out`, which may be a block of columns of a wider matrix.
void mm_into(const Tensor& out, const Tensor& a, const Tensor& b);
void mm_transposed_into(const Tensor& out, const Tensor& a, const Tensor& b);
Tensor sum_rows(const Tensor& a);

Kind kind_of(ScalarType dtype);
ScalarType dtype_of(Kind kind);

// A job's memory as a matrix for torch's products. The result does not own the memory.
Tensor matrix(Place place, Input data, int64_t rows, int64_t columns, int64_t leading_dim, Kind kind);
// Copies `from` into `to`, with conversion.
void copy_into(const Tensor& to, const Tensor& from);

// The memory of a tensor as a kernel argument; null for an absent or empty tensor.
Input data_of(const Tensor& x);
Input data_of(const OptionalTensor& x);
Output out_data(const Tensor& x);

}  // namespace fourfold
