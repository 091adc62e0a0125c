#include "outputs.h"

#include <ATen/EmptyTensor.h>
#include <c10/core/InferenceMode.h>

#include <cstdint>

#include "memory.h"
#include "values.h"

namespace fourfold::bindings {
namespace {

struct Range {
  uintptr_t begin;
  uintptr_t end;
};

// The bytes from the first element to the last.
Range range_of(const fourfold_tensor& tensor) {
  const auto begin = reinterpret_cast<uintptr_t>(tensor.data);
  int64_t last = 0;
  for (int32_t d = 0; d < tensor.dim; ++d) {
    if (tensor.sizes[d] == 0) return {begin, begin};
    last += (tensor.sizes[d] - 1) * tensor.strides[d];
  }
  const auto size = c10::elementSize(static_cast<at::ScalarType>(tensor.dtype));
  return {begin, begin + (static_cast<uintptr_t>(last) + 1) * size};
}

bool overlap(const fourfold_tensor& a, const fourfold_tensor& b) {
  const Range x = range_of(a), y = range_of(b);
  return x.begin < y.end && y.begin < x.end;
}

bool have_same_layout(const fourfold_tensor& a, const fourfold_tensor& b) {
  if (a.dtype != b.dtype || a.dim != b.dim) return false;
  for (int32_t d = 0; d < a.dim; ++d) {
    if (a.sizes[d] != b.sizes[d] || (a.sizes[d] > 1 && a.strides[d] != b.strides[d])) return false;
  }
  return true;
}

fourfold_tensor described(const at::Tensor& tensor) {
  return {const_cast<void*>(tensor.const_data_ptr()), static_cast<int32_t>(tensor.scalar_type()),
          static_cast<int32_t>(tensor.dim()), tensor.sizes().data(), tensor.strides().data()};
}

bool is_plain(const at::Tensor& tensor) {
  return tensor.defined() && tensor.device().is_cpu() && tensor.layout() == at::kStrided && !tensor.is_neg() &&
         !tensor._is_zerotensor() && !tensor.unsafeGetTensorImpl()->is_python_dispatch() && !is_wrapped(tensor) &&
         (!tensor.is_inference() || c10::InferenceMode::is_enabled());
}

}  // namespace

void* Outputs::allocate(
    void* context, int32_t output, int32_t dtype, int32_t dim, const int64_t* sizes, const int64_t* strides) {
  return static_cast<Outputs*>(context)->choose(output, {nullptr, dtype, dim, sizes, strides});
}

void* Outputs::choose(int32_t output, const fourfold_tensor& layout) {
  const auto k = static_cast<size_t>(output);
  if (k < updated_.size() && suits(updated_[k], output, layout)) {
    in_place_.push_back(k);
    written_.push_back(updated_[k]);
  } else {
    const auto dim = static_cast<size_t>(layout.dim);
    const auto dtype = static_cast<at::ScalarType>(layout.dtype);
    constexpr c10::DispatchKeySet cpu(c10::DispatchKey::CPU);
    written_.emplace_back(at::detail::empty_strided_generic(
        {layout.sizes, dim}, {layout.strides, dim}, allocator_of_results(), cpu, dtype));
  }
  return written_.back().mutable_data_ptr();
}

bool Outputs::suits(const at::Tensor& tensor, int32_t output, const fourfold_tensor& layout) const {
  if (!is_plain(tensor)) return false;
  const fourfold_tensor own = described(tensor);
  if (!have_same_layout(own, layout)) return false;
  for (const size_t other : in_place_) {
    if (overlap(own, described(updated_[other]))) return false;
  }
  for (size_t k = 0; k < inputs_.size(); ++k) {
    const fourfold_tensor& input = inputs_[k];
    if (!overlap(own, input)) continue;
    const bool is_same = own.data == input.data && have_same_layout(own, input);
    if (!is_same || fourfold_program_overwrites(program_, output, static_cast<int32_t>(k)) == 0) return false;
  }
  return true;
}

void Outputs::bump_versions() const {
  for (const size_t output : in_place_) updated_[output].unsafeGetTensorImpl()->bump_version();
}

}  // namespace fourfold::bindings
