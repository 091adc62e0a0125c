// Products of sizes that 64 bits may not hold.
#pragma once

#include <cstdint>

namespace fourfold {

// No tensor that holds anything has so many elements; one without may have any sizes, whose products would overflow.
// Below it the kernels' own products, of two sizes of one tensor and small factors, stay within 64 bits.
constexpr int64_t most_elements = int64_t(1) << 48;

// Whether as many elements can be, a size of 0 counted as 1.
template <typename Range>
bool countable(const Range& sizes) {
  int64_t product = 1;
  for (const int64_t size : sizes) {
    if (size != 0 && (__builtin_mul_overflow(product, size, &product) || product >= most_elements)) return false;
  }
  return true;
}

}  // namespace fourfold
