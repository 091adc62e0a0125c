// Decides which dense layers the CPU computes by its own kernels, and which by torch's product.
#pragma once

#include <cstdint>

namespace fourfold::cpu {

// Up to this many rows, kernels read the unpacked weights, once for each four rows: packing would take as long.
constexpr int64_t rows_in_place = 8;

// Measured on one core with AVX-512. For few rows torch's product is faster when the time is bound by reading weights
// that don't fit the core's caches; for more rows the kernels pack the weights, which has to pay off. From 16 rows on
// the kernels are faster up to the largest layer that was measured, 784 x 512.
inline bool fuses_layer(int64_t rows, int64_t input_size, int64_t output_size) {
  const int64_t most = rows <= rows_in_place ? int64_t(1) << 17 : rows < 16 ? int64_t(1) << 16 : int64_t(1) << 19;
  return input_size * output_size <= most;
}

// The fused backward runs on one thread, so the number of multiply-adds is limited. It adds pieces of the batch in
// order, so the number of rows is limited to keep precision (kernels/long_sums.h). It packs the `weights` of all
// layers, which for a single row pays only if they are few.
inline bool fuses_backward_of(int64_t rows, int64_t weights) {
  return rows <= 1 << 12 && rows * weights <= 1 << 21 && (rows > 1 || weights <= 1 << 17);
}

}  // namespace fourfold::cpu
