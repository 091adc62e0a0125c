#include "outputs.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "memory.h"
#include "values.h"

namespace fourfold::graph {

fourfold_tensor described(const at::Tensor& tensor) {
  return {const_cast<void*>(tensor.const_data_ptr()), static_cast<int32_t>(tensor.scalar_type()),
          static_cast<int32_t>(tensor.dim()), tensor.sizes().data(), tensor.strides().data(),
          const_cast<void*>(tensor.storage().data())};
}

at::Tensor new_memory(at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType dtype, at::Device device) {
  if (!device.is_cpu()) {
    const at::AutoDispatchBelowADInplaceOrView no_autograd;
    return at::empty_strided(sizes, strides, at::TensorOptions().dtype(dtype).device(device));
  }
  constexpr c10::DispatchKeySet cpu(c10::DispatchKey::CPU);
  return at::detail::empty_strided_generic(sizes, strides, allocator_of_results(), cpu, dtype);
}

namespace {

struct Range {
  uintptr_t begin;
  uintptr_t end;
};

// The range of bytes from the first element to the last.
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

// On Apple GPUs `data` isn't an address but a buffer (`base`) plus an offset; different buffers never overlap.
bool overlap(const fourfold_tensor& a, const fourfold_tensor& b, at::Device device) {
  if (device.is_mps() && a.base != b.base) return false;
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

bool is_plain(const at::Tensor& tensor, at::Device device) {
  return tensor.defined() && tensor.device() == device && tensor.layout() == at::kStrided && !tensor.is_neg() &&
         !tensor._is_zerotensor() && !tensor.unsafeGetTensorImpl()->is_python_dispatch() && !is_wrapped(tensor) &&
         (!tensor.is_inference() || c10::InferenceMode::is_enabled());
}

// Whether two indices may refer to the same element, as in an expanded tensor.
bool overlaps_itself(const fourfold_tensor& tensor) {
  c10::SmallVector<std::pair<int64_t, int64_t>, 6> steps;  // (stride, count of steps)
  for (int32_t d = 0; d < tensor.dim; ++d) {
    if (tensor.sizes[d] > 1) steps.emplace_back(tensor.strides[d], tensor.sizes[d] - 1);
  }
  std::sort(steps.begin(), steps.end());
  int64_t last = 0;  // the offset of the last element along the dimensions so far
  for (const auto& [stride, count] : steps) {
    if (stride <= last) return true;
    last += stride * count;
  }
  return false;
}

}  // namespace

Outputs::Outputs(const NamedProgram& program, const c10::SmallVectorImpl<fourfold_tensor>& inputs,
                 const std::vector<Target>& targets)
    : program_(program.program), device_(program.device), inputs_(inputs), targets_(targets) {
  if (targets.empty()) return;
  given_.resize(static_cast<size_t>(fourfold_program_outputs(program.program)));
  for (size_t k = 0; k < std::min(targets.size(), given_.size()); ++k) {
    const auto& [tensor, is_new] = targets[k];
    if (is_new || suits(tensor, static_cast<int32_t>(k))) given_[k] = described(tensor);
  }
}

void* Outputs::allocate(
    void* context, int32_t output, int32_t dtype, int32_t dim, const int64_t* sizes, const int64_t* strides) {
  auto& self = *static_cast<Outputs*>(context);
  const auto k = static_cast<size_t>(output), dims = static_cast<size_t>(dim);
  if (self.new_.size() <= k) self.new_.resize(k + 1);
  self.new_[k] = new_memory({sizes, dims}, {strides, dims}, static_cast<at::ScalarType>(dtype), self.device_);
  return self.new_[k].mutable_data_ptr();
}

bool Outputs::suits(const at::Tensor& tensor, int32_t output) const {
  if (!is_plain(tensor, device_)) return false;
  const fourfold_tensor own = described(tensor);
  if (overlaps_itself(own)) return false;
  for (const fourfold_tensor& other : given_) {
    if (other.data != nullptr && overlap(own, other, device_)) return false;
  }
  for (size_t k = 0; k < inputs_.size(); ++k) {
    const fourfold_tensor& input = inputs_[k];
    if (!overlap(own, input, device_)) continue;
    const bool is_same = own.data == input.data && have_same_layout(own, input);
    if (!is_same || fourfold_program_overwrites(program_, output, static_cast<int32_t>(k)) == 0) return false;
  }
  return true;
}

void Outputs::take(std::vector<at::Tensor>& written) {
  new_.resize(std::max(new_.size(), given_.size()));
  for (size_t k = 0; k < new_.size(); ++k) {
    if (!new_[k].defined()) targets_[k].tensor.unsafeGetTensorImpl()->bump_version();
    written.push_back(new_[k].defined() ? std::move(new_[k]) : targets_[k].tensor);
  }
}

}  // namespace fourfold::graph
