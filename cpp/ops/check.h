// Checks of operators' arguments. Errors are one sentence: the operator, what was expected, and the value.
// python/fourfold/operators/_check.py raises the same errors for fake tensors, as ValueError or TypeError.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "ops/fail.h"
#include "ops/sizes.h"
#include "ops/stable.h"

namespace fourfold {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

std::string shape_of(const Tensor& tensor);   // "(16, 64)"
std::string name_of(ScalarType dtype);        // "torch.float32"
bool is_floating(ScalarType dtype);           // float16, bfloat16, float32, float64

// A dimension's name and its expected size; -1 accepts any size.
struct Dimension {
  const char* name;
  int64_t size;
};

struct Named {
  const char* name;
  const Tensor* tensor;  // null if absent
};

inline const Tensor* address(const std::optional<Tensor>& tensor) { return tensor ? &*tensor : nullptr; }

// Checks that all tensors are on the device of the first. The dispatcher considers only one tensor.
void expect_place(const char* op, std::initializer_list<Named> tensors);
void expect_floating(const char* op, const char* name, const Tensor& tensor);
void expect_dtype(const char* op, const char* name, const Tensor& tensor, ScalarType dtype);
void expect_shape(const char* op, const char* name, const Tensor& tensor, std::initializer_list<Dimension> shape);
// Checks that the number of elements doesn't overflow (sizes.h); must precede any product of the sizes.
void expect_countable(const char* op, const char* name, std::initializer_list<int64_t> sizes);
void expect_countable(const char* op, const char* name, const std::vector<int64_t>& sizes);
void expect_countable(const char* op, const char* name, const Tensor& tensor);
// A gradient passed to a backward: any floating-point dtype, or absent.
void expect_gradient(
    const char* op, const char* name, const std::optional<Tensor>& grad, std::initializer_list<Dimension> shape);
// A tensor that the forward saved: not omitted because of save_for_backward=False, and of that shape and dtype.
void expect_saved(const char* op, const Tensor& saved, std::initializer_list<Dimension> shape, ScalarType dtype);
// A backward's output_mask: one entry for each result, or each element of a list.
void expect_mask(const char* op, const std::vector<bool>& output_mask, size_t count);
// A bias: (size), or (1, size) as in the tutorials.
void expect_bias(const char* op, const char* name, const Tensor& tensor, const Dimension& size);

}  // namespace fourfold
