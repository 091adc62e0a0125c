#include "ops/aten.h"

#include <dlfcn.h>
#include <torch/csrc/stable/library.h>

#include <array>
#include <vector>

namespace fourfold {
namespace {

using torch::stable::detail::from;
using torch::stable::detail::to;

template <size_t arguments>
Tensor call(const char* name, const char* overload, std::array<StableIValue, arguments> stack) {
  check_call(torch_call_dispatcher(name, overload, stack.data(), TORCH_ABI_VERSION), name);
  return to<Tensor>(stack[0]);
}

// What a kernel may take the pointer of. Under autocast a product of float32 comes back as bfloat16: fourfold's own
// autocast rule keeps the key out of here, but should it come in by another road, that must not be read as float32.
Tensor expect_product(const Tensor& product, ScalarType dtype) { return prepared(product, dtype); }

}  // namespace

void check_call(int32_t code, const char* what) {
  if (code == TORCH_SUCCESS) return;
  // In torch since 2.13, so looked up when it is needed.
  using Reason = const char*();
  static auto* const reason =
      reinterpret_cast<Reason*>(dlsym(RTLD_DEFAULT, "torch_exception_get_what_without_backtrace"));
  if (reason != nullptr) throw std::runtime_error(std::string("fourfold: ") + what + " failed: " + reason());
  throw std::runtime_error(std::string("fourfold: ") + what + " failed; torch 2.13 or newer would say why");
}

Place place_of(const Tensor& x) {
  Place place;
  check_call(aoti_torch_get_device_type(x.get(), &place.type), "the device of a tensor");
  check_call(aoti_torch_get_device_index(x.get(), &place.index), "the device of a tensor");
  return place;
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
  std::vector<int64_t> strides(sizes.size());
  int64_t stride = 1;
  for (size_t d = sizes.size(); d-- > 0;) {
    strides[d] = stride;
    stride *= sizes.begin()[d] > 1 ? sizes.begin()[d] : 1;
  }
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

Tensor clone(const Tensor& x) {
  using torch::headeronly::MemoryFormat;
  return call<2>("aten::clone", "", {from(x), from(std::optional<MemoryFormat>(MemoryFormat::Contiguous))});
}

Tensor contiguous(const Tensor& x) {
  if (x.is_contiguous()) return x;
  return call<2>("aten::contiguous", "", {from(x), from(torch::headeronly::MemoryFormat::Contiguous)});
}

Tensor convert(const Tensor& x, ScalarType dtype) {
  if (x.scalar_type() == dtype) return x;
  return call<5>(
      "aten::to", "dtype", {from(x), from(dtype), from(false), from(false), from(std::nullopt)});
}

ScalarType compute_dtype(ScalarType dtype) { return dtype == ScalarType::Double ? dtype : ScalarType::Float; }

Tensor prepared(const Tensor& x, ScalarType dtype) { return contiguous(convert(x, dtype)); }

OptionalTensor prepared(const OptionalTensor& x, ScalarType dtype) {
  return x ? OptionalTensor(prepared(*x, dtype)) : std::nullopt;
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
  return call<4>("aten::narrow", "", {from(x), from(dim), from(start), from(length)});
}

Tensor transposed(const Tensor& x) {
  return call<3>("aten::transpose", "int", {from(x), from(int64_t(0)), from(int64_t(1))});
}

Tensor view(const Tensor& x, Sizes sizes) { return view(x, std::vector<int64_t>(sizes)); }

// Autograd takes the result for a tensor of its own. Of a view that an operator returned it would refuse every operation
// in place.
Tensor view(const Tensor& x, const std::vector<int64_t>& sizes) {
  return call<2>(
      "aten::_unsafe_view", "",
      {from(x), from(torch::headeronly::IntHeaderOnlyArrayRef(sizes.data(), sizes.size()))});
}

Tensor linear(const Tensor& x, const Tensor& weights, const OptionalTensor& bias) {
  return expect_product(call<3>("aten::linear", "", {from(x), from(weights), from(bias)}), x.scalar_type());
}

Tensor mm(const Tensor& a, const Tensor& b) {
  return expect_product(call<2>("aten::mm", "", {from(a), from(b)}), a.scalar_type());
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

Kind kind_of(ScalarType dtype) {
  switch (dtype) {
    case ScalarType::Bool: return Kind::boolean;
    case ScalarType::Byte: return Kind::uint8;
    case ScalarType::Char: return Kind::int8;
    case ScalarType::Short: return Kind::int16;
    case ScalarType::Int: return Kind::int32;
    case ScalarType::Long: return Kind::int64;
    case ScalarType::Half: return Kind::float16;
    case ScalarType::BFloat16: return Kind::bfloat16;
    case ScalarType::Float: return Kind::float32;
    case ScalarType::Double: return Kind::float64;
    default: fail("fourfold: no kernel computes in ", name_of(dtype));
  }
}

ScalarType dtype_of(Kind kind) {
  switch (kind) {
    case Kind::boolean: return ScalarType::Bool;
    case Kind::uint8: return ScalarType::Byte;
    case Kind::int8: return ScalarType::Char;
    case Kind::int16: return ScalarType::Short;
    case Kind::int32: return ScalarType::Int;
    case Kind::int64: return ScalarType::Long;
    case Kind::float16: return ScalarType::Half;
    case Kind::bfloat16: return ScalarType::BFloat16;
    case Kind::float32: return ScalarType::Float;
    default: return ScalarType::Double;
  }
}

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
  AtenTensorHandle handle = nullptr;
  check_call(
      aoti_torch_create_tensor_from_blob(
          const_cast<void*>(static_cast<const void*>(data)), 2, sizes, strides, 0, to<int32_t>(from(dtype_of(kind))), place.type, place.index,
          &handle),
      "a view of memory");
  return Tensor(handle);
}

void copy_into(const Tensor& to, const Tensor& from_tensor) {
  call<3>("aten::copy_", "", {from(to), from(from_tensor), from(false)});
}

}  // namespace fourfold
