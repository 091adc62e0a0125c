// Which dense layers the CPU computes by its own kernels, and which by torch's product.
#pragma once

#include <cstdint>

namespace fourfold::cpu {

// So many rows read the weights where torch keeps them, as often as there are fours of them: packing would take as long.
constexpr int64_t rows_in_place = 8;

// Measured on one core with AVX-512. A few rows are worth a call to torch's product once they are bound by reading weights
// that no cache near the core holds; more of them pack the weights, and have to be worth that. From 16 rows on they are
// ahead up to the largest that was measured, 784 x 512.
inline bool fuses_layer(int64_t rows, int64_t input_size, int64_t output_size) {
  const int64_t most = rows <= rows_in_place ? int64_t(1) << 17 : rows < 16 ? int64_t(1) << 16 : int64_t(1) << 19;
  return input_size * output_size <= most;
}

// The fused backward runs on one thread, so up to this many multiply-adds a product; and it adds up pieces of the batch
// in order, so up to as many rows as lose no digits that way (kernels/long_sums.h). It packs the weights, all layers'
// `weights`, which for a single row pays only while they are few.
inline bool fuses_backward_of(int64_t rows, int64_t weights) {
  return rows <= 1 << 12 && rows * weights <= 1 << 21 && (rows > 1 || weights <= 1 << 17);
}

}  // namespace fourfold::cpu
