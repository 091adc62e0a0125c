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

// Whether the elements are those in its memory, at its strides, and it is all that a result depends on.
inline bool is_plain_tensor(const at::Tensor& tensor) {
  return tensor.defined() && tensor.layout() == at::kStrided && !is_wrapped(tensor) && !tensor.is_neg() &&
         !tensor.unsafeGetTensorImpl()->is_python_dispatch() && !tensor._is_zerotensor();
}

}  // namespace fourfold::graph
