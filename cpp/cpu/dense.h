// Which dense layers the CPU computes by its own kernels, and which by torch's product.
#pragma once

#include <cstdint>

namespace fourfold::cpu {

// Measured on one core with AVX-512. The kernels pack the weights in each call, so a few rows have to be worth that: with
// one row they take as long as torch's product at 256 x 256 and twice as long at 512 x 512. From 16 rows on they are
// ahead up to the largest that was measured, 784 x 512.
inline bool fuses_layer(int64_t rows, int64_t input_size, int64_t output_size) {
  return input_size * output_size <= (rows < 16 ? int64_t(1) << 16 : int64_t(1) << 19);
}

// The fused backward runs on one thread, so up to this many multiply-adds a product; and it adds up pieces of the batch
// in order, so up to as many rows as lose no digits that way (kernels/long_sums.h). `weights` are those of all layers.
inline bool fuses_backward_of(int64_t rows, int64_t weights) {
  return rows <= 1 << 12 && rows * weights <= 1 << 21;
}

}  // namespace fourfold::cpu
