// Overflow checks for products of sizes.
#pragma once

#include <cstdint>

namespace fourfold {

// No tensor with memory has this many elements; sizes of empty tensors are arbitrary, and their products may overflow.
// Below this limit the kernels' own products, of two sizes of one tensor and small factors, fit in 64 bits.
constexpr int64_t most_elements = int64_t(1) << 48;

// Whether the product of the sizes, with 0 counted as 1, is below most_elements.
template <typename Range>
bool countable(const Range& sizes) {
  int64_t product = 1;
  for (const int64_t size : sizes) {
    if (size != 0 && (__builtin_mul_overflow(product, size, &product) || product >= most_elements)) return false;
  }
  return true;
}

}  // namespace fourfold
