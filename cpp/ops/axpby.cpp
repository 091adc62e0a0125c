#include "ops/axpby.h"

#include "ops/registration.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace fourfold {
namespace {

void expect_real(const char* name, ScalarType dtype) {
  switch (dtype) {
    case ScalarType::Bool:
    case ScalarType::Byte:
    case ScalarType::Char:
    case ScalarType::Short:
    case ScalarType::Int:
    case ScalarType::Long: return;
    default: break;
  }
  if (!is_floating(dtype)) {
    fail("axpby: expected ", name, " to be bool, an integer or floating point, but got ", name_of(dtype));
  }
}

// Factors are passed as doubles, which represent integers exactly up to 2^53.
void expect_whole(const char* name, double factor, ScalarType dtype) {
  if (factor != std::floor(factor) || std::abs(factor) > 9007199254740992.0) {
    fail("axpby: expected ", name, " to be a whole number within 2^53 for a result of ", name_of(dtype), ", but got ",
         factor, "; pass a floating point dtype");
  }
}

std::vector<int64_t> broadcast_shape(const Tensor& x, const Tensor& y) {
  std::vector<int64_t> shape(static_cast<size_t>(std::max(x.dim(), y.dim())));
  for (int64_t d = 1; d <= static_cast<int64_t>(shape.size()); ++d) {
    const int64_t a = d <= x.dim() ? x.sizes()[x.dim() - d] : 1;
    const int64_t b = d <= y.dim() ? y.sizes()[y.dim() - d] : 1;
    if (a != b && a != 1 && b != 1) {
      fail("axpby: expected x and y to broadcast together, but got ", shape_of(x), " and ", shape_of(y));
    }
    shape[shape.size() - static_cast<size_t>(d)] = a == 1 ? b : a;
  }
  return shape;
}

// The result has the layout of the first of x and y that has its shape.
Tensor empty_result(const Tensor& x, const Tensor& y, ScalarType dtype) {
  const std::vector<int64_t> shape = broadcast_shape(x, y);
  for (const Tensor* like : {&x, &y}) {
    const auto sizes = like->sizes();
    if (std::equal(shape.begin(), shape.end(), sizes.begin(), sizes.end())) return empty_like(*like, dtype);
  }
  expect_countable("axpby", "the result", shape);
  const std::vector<int64_t> strides = contiguous_strides(shape.data(), shape.size());
  return empty(place_of(x), shape.data(), strides.data(), static_cast<int64_t>(shape.size()), dtype);
}

}  // namespace

Tensor AxpbyBodies::forward(
    const ElementwiseKernels& kernels, const Tensor& x, const Tensor& y, double alpha, double beta,
    std::optional<ScalarType> wanted) {
  expect_real("x", x.scalar_type());
  expect_real("y", y.scalar_type());
  if (wanted) expect_real("dtype", *wanted);
  const ScalarType dtype =
      wanted ? *wanted : x.scalar_type() == y.scalar_type() ? x.scalar_type() : result_type(x, y);
  if (!is_floating(dtype)) {
    expect_whole("alpha", alpha, dtype);
    expect_whole("beta", beta, dtype);
  }
  expect_place("axpby", {{"x", &x}, {"y", &y}});
  if (kernels.expect != nullptr) kernels.expect(kind_of(dtype));
  Tensor out = empty_result(x, y, dtype);
  const Tensor a = convert(x, dtype);
  const Tensor b = convert(y, dtype);
  kernels.forward(elementwise(out, {&a, &b}, {alpha, beta}));
  return out;
}

}  // namespace fourfold

FOURFOLD_OPERATORS(m) {
  m.def("axpby(Tensor x, Tensor y, float alpha=2, float beta=1, ScalarType? dtype=None) -> Tensor");
}
