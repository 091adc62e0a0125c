// The inputs and outputs of graphs: tensors and numbers.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <string>
#include <vector>

namespace fourfold::graph {

using Values = std::vector<c10::IValue>;

// "[2, 3]". Messages of TORCH_CHECK must contain only strings: it formats numbers with iostreams (system/text.h).
inline std::string text_of(at::IntArrayRef numbers) {
  std::string text = "[";
  for (const int64_t number : numbers) text += (text.size() > 1 ? ", " : "") + std::to_string(number);
  return text + "]";
}

inline bool equals_one(const c10::IValue& value) { return value.isScalar() && value.toScalar().toDouble() == 1; }

// Whether a tensor is a dual tensor of forward-mode differentiation.
inline bool has_tangent(const at::Tensor& tensor) { return tensor.defined() && tensor._fw_grad(0).defined(); }

// Whether a tensor is batched by vmap, or a dual tensor.
inline bool is_wrapped(const at::Tensor& tensor) {
  constexpr c10::DispatchKeySet batches({c10::DispatchKey::FuncTorchBatched, c10::DispatchKey::Batched});
  return tensor.key_set().has_any(batches) || has_tangent(tensor);
}

// Whether it has memory with its elements, at its strides, and no transform of torch's sees what is computed from it.
inline bool is_plain_tensor(const at::Tensor& tensor) {
  constexpr c10::DispatchKeySet transforms({c10::DispatchKey::Functionalize, c10::DispatchKey::FuncTorchGradWrapper});
  return tensor.defined() && tensor.layout() == at::kStrided && tensor.has_storage() && !tensor.is_meta() &&
         !tensor.key_set().has_any(transforms) && !is_wrapped(tensor) && !tensor.is_neg() &&
         !tensor.unsafeGetTensorImpl()->is_python_dispatch() && !tensor._is_zerotensor();
}

// Whether it is a plain tensor on the CPU. dims: expected, if any number of them isn't right.
inline bool is_cpu_tensor(const c10::IValue& value, int64_t dims = -1) {
  return value.isTensor() && is_plain_tensor(value.toTensor()) && value.toTensor().is_cpu() && (dims < 0 || value.toTensor().dim() == dims);
}

}  // namespace fourfold::graph
