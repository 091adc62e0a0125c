// How an operator refuses its arguments: one plain sentence, operator first, then what was expected, then the value.
// python/fourfold/operators/_check.py says the same sentences for fake tensors and gives them their Python type.
#pragma once

#include <torch/csrc/stable/tensor.h>

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "ops/sizes.h"

namespace fourfold {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// std::runtime_error, not STD_TORCH_CHECK, which would put file and line before the sentence.
template <typename... Parts>
[[noreturn]] void fail(const Parts&... parts) {
  std::ostringstream sentence;
  (sentence << ... << parts);
  throw std::runtime_error(sentence.str());
}

std::string shape_of(const Tensor& tensor);   // "(16, 64)"
std::string name_of(ScalarType dtype);        // "torch.float32"
bool is_floating(ScalarType dtype);           // float16, bfloat16, float32, float64

// A dimension's name and the size expected of it; -1 takes any.
struct Dimension {
  const char* name;
  int64_t size;
};

struct Named {
  const char* name;
  const Tensor* tensor;  // null for one left out
};

inline const Tensor* address(const std::optional<Tensor>& tensor) { return tensor ? &*tensor : nullptr; }

// All on the device of the first. The dispatcher looks at one tensor; what the others point to may lie elsewhere.
void expect_place(const char* op, std::initializer_list<Named> tensors);
void expect_floating(const char* op, const char* name, const Tensor& tensor);
void expect_dtype(const char* op, const char* name, const Tensor& tensor, ScalarType dtype);
void expect_shape(const char* op, const char* name, const Tensor& tensor, std::initializer_list<Dimension> shape);
// That what has these sizes can be counted (sizes.h), which comes before any product of them.
void expect_countable(const char* op, const char* name, std::initializer_list<int64_t> sizes);
void expect_countable(const char* op, const char* name, const std::vector<int64_t>& sizes);
void expect_countable(const char* op, const char* name, const Tensor& tensor);
// A gradient handed to a backward: any floating dtype, or none at all.
void expect_gradient(
    const char* op, const char* name, const std::optional<Tensor>& grad, std::initializer_list<Dimension> shape);
// A tensor that the forward kept for its backward: not left out by save_for_backward=False, and of that shape.
void expect_saved(const char* op, const Tensor& saved, std::initializer_list<Dimension> shape, ScalarType dtype);
// What a backward is told of its results: which are wanted, of a list each element.
void expect_mask(const char* op, const std::vector<bool>& output_mask, size_t count);
// (size) or (1, size): a bias as this library keeps it, or as the tutorials do.
void expect_bias(const char* op, const char* name, const Tensor& tensor, const Dimension& size);

}  // namespace fourfold
