#include "ops/check.h"

#include <algorithm>
#include <utility>

#include "ops/kind.h"
#include "system/text.h"

namespace fourfold {
namespace {

std::string join(std::initializer_list<Dimension> shape, bool sizes) {
  std::string text = "(";
  const char* separator = "";
  for (const Dimension& dimension : shape) {
    text += separator;
    if (!sizes) {
      text += dimension.name;
    } else if (dimension.size < 0) {
      text += "any";
    } else {
      text += std::to_string(dimension.size);
    }
    separator = ", ";
  }
  return text + (shape.size() == 1 ? ",)" : ")");
}

template <typename Sizes>
std::string spelled(const Sizes& sizes) {
  std::string text = "(";
  const char* separator = "";
  for (const int64_t size : sizes) {
    text += separator + std::to_string(size);
    separator = ", ";
  }
  return text + (sizes.size() == 1 ? ",)" : ")");
}

template <typename Sizes>
void refuse_uncountable(const char* op, const char* name, const Sizes& sizes) {
  if (countable(sizes)) return;
  fail(op, ": expected ", name, " to have sizes whose product, a 0 counted as 1, is below 2^48, but got ",
       spelled(sizes));
}

std::string device_of(const Tensor& tensor) {
  using torch::headeronly::DeviceType;
  const std::string index = std::to_string(tensor.get_device_index());
  switch (tensor.device().type()) {
    case DeviceType::CPU: return "cpu";
    case DeviceType::CUDA: return "cuda:" + index;
    case DeviceType::MPS: return "mps:" + index;
    case DeviceType::Meta: return "meta";
    default: return "another device";
  }
}

// Numbers of torch: every call checks every tensor, and torch::stable::Device would translate each number.
std::pair<int32_t, int32_t> raw_device_of(const Tensor& tensor) {
  int32_t type = 0;
  int32_t index = 0;
  aoti_torch_get_device_type(tensor.get(), &type);
  aoti_torch_get_device_index(tensor.get(), &index);
  return {type, index};
}

}  // namespace

void append(std::string& sentence, double part) { sentence += system::format_double(part); }

std::string shape_of(const Tensor& tensor) { return spelled(tensor.sizes()); }

std::string name_of(ScalarType dtype) {
  for (const Dtype& one : dtypes) {
    if (one.number == static_cast<int32_t>(dtype)) return std::string("torch.") + one.torch;
  }
  switch (dtype) {
    case ScalarType::UInt16: return "torch.uint16";
    case ScalarType::UInt32: return "torch.uint32";
    case ScalarType::UInt64: return "torch.uint64";
    case ScalarType::ComplexHalf: return "torch.complex32";
    case ScalarType::ComplexFloat: return "torch.complex64";
    case ScalarType::ComplexDouble: return "torch.complex128";
    default: return std::string("torch.") + torch::headeronly::toString(dtype);
  }
}

bool is_floating(ScalarType dtype) {
  return dtype == ScalarType::Half || dtype == ScalarType::BFloat16 || dtype == ScalarType::Float ||
         dtype == ScalarType::Double;
}

void expect_place(const char* op, std::initializer_list<Named> tensors) {
  const Named& first = *tensors.begin();
  const auto [type, index] = raw_device_of(*first.tensor);
  for (const Named& named : tensors) {
    if (named.tensor == nullptr) continue;
    const auto [other_type, other_index] = raw_device_of(*named.tensor);
    if (other_type == type && other_index == index) continue;
    const std::string place = device_of(*first.tensor);
    fail(op, ": expected ", named.name, " to be on ", place, " like ", first.name, ", but got ",
         device_of(*named.tensor), "; move it with .to('", place, "')");
  }
}

void expect_floating(const char* op, const char* name, const Tensor& tensor) {
  if (!is_floating(tensor.scalar_type())) {
    fail(op, ": expected ", name, " to be floating point (float16, bfloat16, float32 or float64), but got ",
         name_of(tensor.scalar_type()));
  }
}

void expect_dtype(const char* op, const char* name, const Tensor& tensor, ScalarType dtype) {
  if (tensor.scalar_type() != dtype) {
    fail(op, ": expected ", name, " to have dtype ", name_of(dtype), ", but got ", name_of(tensor.scalar_type()));
  }
}

void expect_shape(const char* op, const char* name, const Tensor& tensor, std::initializer_list<Dimension> shape) {
  const auto sizes = tensor.sizes();
  bool agrees = sizes.size() == shape.size();
  size_t d = 0;
  for (const Dimension& dimension : shape) {
    agrees = agrees && (dimension.size < 0 || sizes[d] == dimension.size);
    ++d;
  }
  if (!agrees) {
    fail(op, ": expected ", name, " to have shape ", join(shape, false), " = ", join(shape, true), ", but got ",
         shape_of(tensor));
  }
}

void expect_countable(const char* op, const char* name, std::initializer_list<int64_t> sizes) {
  refuse_uncountable(op, name, sizes);
}

void expect_countable(const char* op, const char* name, const std::vector<int64_t>& sizes) {
  refuse_uncountable(op, name, sizes);
}

void expect_countable(const char* op, const char* name, const Tensor& tensor) {
  refuse_uncountable(op, name, tensor.sizes());
}

void expect_gradient(
    const char* op, const char* name, const std::optional<Tensor>& grad, std::initializer_list<Dimension> shape) {
  if (!grad) return;
  expect_floating(op, name, *grad);
  expect_shape(op, name, *grad, shape);
}

void expect_saved(const char* op, const Tensor& saved, std::initializer_list<Dimension> shape, ScalarType dtype) {
  const bool expects_some =
      std::all_of(shape.begin(), shape.end(), [](const Dimension& dimension) { return dimension.size > 0; });
  if (saved.dim() == 1 && saved.numel() == 0 && expects_some) {
    fail(op, ": the forward call saved nothing for its backward; call it with save_for_backward=True");
  }
  expect_shape(op, "what the forward kept", saved, shape);
  expect_dtype(op, "what the forward kept", saved, dtype);
}

void expect_mask(const char* op, const std::vector<bool>& output_mask, size_t count) {
  if (output_mask.size() == count) return;
  fail(op, ": expected output_mask to have one for each of the ", count, " gradients, but got ", output_mask.size());
}

void expect_bias(const char* op, const char* name, const Tensor& tensor, const Dimension& size) {
  const bool agrees = tensor.numel() == size.size &&
                      (tensor.dim() == 1 || (tensor.dim() == 2 && tensor.sizes()[0] == 1));
  if (!agrees) {
    fail(op, ": expected ", name, " to have shape (", size.name, ",) or (1, ", size.name, ") with ", size.name, " = ",
         size.size, ", but got ", shape_of(tensor));
  }
}

}  // namespace fourfold
