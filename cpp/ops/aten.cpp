#include "ops/aten.h"

#include <torch/csrc/stable/library.h>
#include <torch/headeronly/core/ScalarType.h>

#include <algorithm>
#include <array>
#include <vector>

#include "system/system.h"

namespace fourfold {
namespace {

using torch::stable::detail::from;
using torch::stable::detail::to;

template <size_t arguments>
Tensor call(const char* name, const char* overload, std::array<StableIValue, arguments> stack) {
  check_call(torch_call_dispatcher(name, overload, stack.data(), TORCH_ABI_VERSION), name);
  return to<Tensor>(stack[0]);
}

// Makes a product contiguous and of that dtype. Under autocast torch returns a float32 product as bfloat16. fourfold's
// autocast rule excludes the autocast key here, but if it is set nevertheless, kernels must not read the result as
// float32.
Tensor undo_autocast(const Tensor& product, ScalarType dtype) { return prepared(product, dtype); }

Tensor contiguous_copy(const Tensor& x, ScalarType dtype) {
  const std::vector<int64_t> strides = contiguous_strides(x.sizes().data(), x.sizes().size());
  const Tensor out = empty(place_of(x), x.sizes().data(), strides.data(), x.dim(), dtype);
  copy_into(out, x);
  return out;
}

// A view of x's memory, `offset` elements after x's first. To autograd it is a separate tensor: if an operator returned
// a view, autograd would reject all in-place operations on it.
Tensor alias(const Tensor& x, const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides, int64_t offset) {
  AtenTensorHandle handle = nullptr;
  const auto dim = static_cast<int64_t>(sizes.size());
  check_call(
      aoti_torch__reinterpret_tensor(x.get(), dim, sizes.data(), strides.data(), offset, &handle), "a view of a tensor");
  return Tensor(handle);
}

std::vector<int64_t> sizes_of(const Tensor& x) { return {x.sizes().begin(), x.sizes().end()}; }
std::vector<int64_t> strides_of(const Tensor& x) { return {x.strides().begin(), x.strides().end()}; }

}  // namespace

void fail_call(const char* what) {
  // Only in torch 2.13 and later, so it is looked up at run time. Earlier versions only log the reason.
  using Reason = const char*();
  static auto* const reason =
      reinterpret_cast<Reason*>(system::symbol_of_process("torch_exception_get_what_without_backtrace"));
  if (reason != nullptr) fail("fourfold: ", what, " failed: ", reason());
  fail("fourfold: ", what, " failed; torch's log has the reason, and torch 2.13 or newer gives it here");
}

void check_call(int32_t code, const char* what) {
  if (code != TORCH_SUCCESS) fail_call(what);
}

std::string text_of(StringHandle handle) {
  size_t length = 0;
  const char* characters = nullptr;
  check_call(torch_string_length(handle, &length), "the length of a string");
  check_call(torch_string_c_str(handle, &characters), "the characters of a string");
  std::string text(characters, length);
  check_call(torch_delete_string(handle), "the end of a string");
  return text;
}

Place place_of(const Tensor& x) {
  Place place;
  check_call(aoti_torch_get_device_type(x.get(), &place.type), "the device of a tensor");
  check_call(aoti_torch_get_device_index(x.get(), &place.index), "the device of a tensor");
  return place;
}

std::vector<int64_t> contiguous_strides(const int64_t* sizes, size_t dim) {
  std::vector<int64_t> strides(dim);
  int64_t stride = 1;
  for (size_t d = dim; d-- > 0;) {
    strides[d] = stride;
    stride *= sizes[d] > 1 ? sizes[d] : 1;
  }
  return strides;
}

Tensor empty(Place place, const int64_t* sizes, const int64_t* strides, int64_t dim, ScalarType dtype) {
  AtenTensorHandle handle = nullptr;
  check_call(
      aoti_torch_empty_strided(dim, sizes, strides, to<int32_t>(from(dtype)), place.type, place.index, &handle),
      "an allocation");
  return Tensor(handle);
}

Tensor empty(Place place, Sizes sizes, ScalarType dtype) {
  expect_countable("fourfold", "a result", sizes);
  const std::vector<int64_t> strides = contiguous_strides(sizes.begin(), sizes.size());
  return empty(place, sizes.begin(), strides.data(), static_cast<int64_t>(sizes.size()), dtype);
}

Tensor zeros(Place place, Sizes sizes, ScalarType dtype) {
  const Tensor out = empty(place, sizes, dtype);
  return call<1>("aten::zero_", "", {from(out)});
}

Tensor nothing(Place place, ScalarType dtype) { return empty(place, {0}, dtype); }

Tensor empty_like(const Tensor& x, ScalarType dtype) {
  if (x.is_contiguous()) return empty(place_of(x), x.sizes().data(), x.strides().data(), x.dim(), dtype);
  return call<6>(
      "aten::empty_like", "",
      {from(x), from(std::optional<ScalarType>(dtype)), from(std::nullopt), from(std::nullopt), from(std::nullopt),
       from(std::nullopt)});
}

Tensor contiguous(const Tensor& x) { return x.is_contiguous() ? x : contiguous_copy(x, x.scalar_type()); }

Tensor convert(const Tensor& x, ScalarType dtype) {
  if (x.scalar_type() == dtype) return x;
  const Tensor out = empty_like(x, dtype);
  copy_into(out, x);
  return out;
}

ScalarType compute_dtype(ScalarType dtype) { return dtype == ScalarType::Double ? dtype : ScalarType::Float; }

Tensor prepared(const Tensor& x, ScalarType dtype) {
  return x.scalar_type() == dtype ? contiguous(x) : contiguous_copy(x, dtype);
}

OptionalTensor prepared(const OptionalTensor& x, ScalarType dtype) {
  return x ? OptionalTensor(prepared(*x, dtype)) : std::nullopt;
}

Tensor as_rows(const Tensor& x, int64_t rows, int64_t size, ScalarType dtype) {
  const Tensor dense = prepared(x, dtype);
  return dense.dim() == 2 ? dense : view(dense, {rows, size});
}

Tensor unflatten_rows(const Tensor& rows, const Tensor& x, int64_t last) {
  if (x.dim() == 2) return rows;
  std::vector<int64_t> shape = sizes_of(x);
  shape.back() = last;
  return view(rows, shape);
}

OptionalTensor flat_bias(const OptionalTensor& bias, ScalarType dtype) {
  if (!bias) return std::nullopt;
  const Tensor dense = prepared(*bias, dtype);
  return dense.dim() == 1 ? dense : view(dense, {dense.numel()});
}

Tensor like_bias(const Tensor& grad, const Tensor& bias) {
  return bias.dim() == 1 ? grad : view(grad, {1, grad.numel()});
}

Tensor returned(bool wanted, const OptionalTensor& grad, const Tensor& x) {
  return wanted && grad ? convert(*grad, x.scalar_type()) : nothing(place_of(x), x.scalar_type());
}

Tensor returned(bool wanted, const OptionalTensor& grad, const Tensor& x, const OptionalTensor& bias) {
  wanted = wanted && bias;
  return wanted && grad ? like_bias(returned(wanted, grad, x), *bias) : returned(wanted, grad, x);
}

ScalarType result_type(const Tensor& x, const Tensor& y) {
  std::array<StableIValue, 2> stack{from(x), from(y)};
  check_call(torch_call_dispatcher("aten::result_type", "Tensor", stack.data(), TORCH_ABI_VERSION), "result_type");
  return to<ScalarType>(stack[0]);
}

Tensor narrow(const Tensor& x, int64_t dim, int64_t start, int64_t length) {
  std::vector<int64_t> sizes = sizes_of(x);
  sizes[static_cast<size_t>(dim)] = length;
  return alias(x, sizes, strides_of(x), start * x.stride(dim));
}

Tensor transposed(const Tensor& x) { return alias(x, {x.size(1), x.size(0)}, {x.stride(1), x.stride(0)}, 0); }

Tensor view(const Tensor& x, Sizes sizes) { return view(x, std::vector<int64_t>(sizes)); }

Tensor view(const Tensor& x, const std::vector<int64_t>& sizes) {
  if (!x.is_contiguous()) throw std::logic_error("fourfold: a view in another shape of what is not contiguous");
  return alias(x, sizes, contiguous_strides(sizes.data(), sizes.size()), 0);
}

Tensor linear(const Tensor& x, const Tensor& weights, const OptionalTensor& bias) {
  // With zero features torch's linear aborts the process on Apple GPUs.
  if (x.size(1) == 0) {
    const Tensor out = zeros(place_of(x), {x.size(0), weights.size(0)}, x.scalar_type());
    if (bias) copy_into(out, *bias);
    return out;
  }
  return undo_autocast(call<3>("aten::linear", "", {from(x), from(weights), from(bias)}), x.scalar_type());
}

Tensor mm(const Tensor& a, const Tensor& b) {
  return undo_autocast(call<2>("aten::mm", "", {from(a), from(b)}), a.scalar_type());
}

Tensor mm_transposed(const Tensor& a, const Tensor& b) { return mm(transposed(a), b); }

void mm_into(const Tensor& out, const Tensor& a, const Tensor& b) {
  call<3>("aten::mm", "out", {from(a), from(b), from(out)});
}

void mm_transposed_into(const Tensor& out, const Tensor& a, const Tensor& b) { mm_into(out, transposed(a), b); }

Tensor sum_rows(const Tensor& a) {
  const int64_t dim = 0;
  return call<4>(
      "aten::sum", "dim_IntList",
      {from(a), from(std::optional(torch::headeronly::IntHeaderOnlyArrayRef(&dim, 1))), from(false),
       from(std::nullopt)});
}

#define FOURFOLD_CHECK(name, torch_name, number, type, bytes, computed)                            \
  static_assert(static_cast<int>(torch::headeronly::CppTypeToScalarType<type>::value) == (number)); \
  static_assert(sizeof(type) == (bytes));
FOURFOLD_DTYPES(FOURFOLD_CHECK)
#undef FOURFOLD_CHECK

Kind kind_of(ScalarType dtype) {
  const auto* const found = std::find_if(
      std::begin(dtypes), std::end(dtypes), [&](const Dtype& one) { return one.number == static_cast<int32_t>(dtype); });
  if (found == std::end(dtypes)) fail("fourfold: no kernel computes in ", name_of(dtype));
  return static_cast<Kind>(found - std::begin(dtypes));
}

ScalarType dtype_of(Kind kind) { return static_cast<ScalarType>(describe(kind).number); }

namespace {

Output memory_of(const Tensor& x, void* data) {
  if (data == nullptr) return {};
  const int64_t offset = x.storage_offset() * static_cast<int64_t>(x.element_size());
  return {static_cast<char*>(data) - offset, offset};
}

}  // namespace

Input data_of(const Tensor& x) { return memory_of(x, const_cast<void*>(x.const_data_ptr())); }
Input data_of(const OptionalTensor& x) { return x ? data_of(*x) : Input(); }
Output out_data(const Tensor& x) { return memory_of(x, x.mutable_data_ptr()); }

Tensor matrix(Place place, Input data, int64_t rows, int64_t columns, int64_t leading_dim, Kind kind) {
  const int64_t sizes[] = {rows, columns};
  const int64_t strides[] = {leading_dim, 1};
  const ScalarType dtype = dtype_of(kind);
  AtenTensorHandle handle = nullptr;
  check_call(
      aoti_torch_create_tensor_from_blob(
          const_cast<void*>(data.base), 2, sizes, strides, data.offset / element_size(kind), to<int32_t>(from(dtype)),
          place.type, place.index, &handle),
      "a view of memory");
  return Tensor(handle);
}

void copy_into(const Tensor& to, const Tensor& from_tensor) {
  check_call(aoti_torch_copy_(to.get(), from_tensor.get(), /*non_blocking=*/0), "a copy");
}

}  // namespace fourfold
