// A block's products with small weights: rows are in shared memory, weights are staged there, a part of the depth at a
// time.
#pragma once

#include "math.cuh"

namespace fourfold::gpu {

constexpr int dense_threads = 256;
constexpr int dense_lanes = 16;    // threads along the columns; the others are along the rows
constexpr int most_width = 128;    // maximum number of columns of a product
constexpr int columns_per_thread = most_width / dense_lanes;
constexpr int weights_pitch = most_width + 1;

// The depth of the staged weights, such that the widest network fits the smallest GPU's shared memory, also in float64.
template <typename V>
constexpr int dense_depth = 128 / static_cast<int>(sizeof(V));

// sum[r][c] = row (thread / 16) * rows_per_thread + r times column thread % 16 + 16 c, over the depth.
//
// Every thread reads value(row, k); the block reads weight(column, k) once, with k (by_depth) or the column as the
// fastest index over the threads, to match the weights' layout. `staged` has dense_depth<V> * weights_pitch values. All
// threads must call it. `staged` may be reused before and after.
template <bool by_depth, int rows_per_thread, typename V, typename Value, typename Weight>
FOURFOLD_FN void dense_product(V (&sum)[rows_per_thread][columns_per_thread], V* staged, int depth, int columns,
                               const Value& value, const Weight& weight) {
  const int thread = static_cast<int>(threadIdx.x);
  const int first_row = thread / dense_lanes * rows_per_thread;
  for (int r = 0; r < rows_per_thread; ++r) {
    for (int c = 0; c < columns_per_thread; ++c) sum[r][c] = V(0);
  }
  for (int k0 = 0; k0 < depth; k0 += dense_depth<V>) {
    const int part = min(dense_depth<V>, depth - k0);
    for (int at = thread; at < part * columns; at += dense_threads) {
      const int k = by_depth ? at % part : at / columns;
      const int column = by_depth ? at / part : at % columns;
      staged[k * weights_pitch + column] = weight(column, k0 + k);
    }
    __syncthreads();
    for (int k = 0; k < part; ++k) {
      V row[rows_per_thread];
      for (int r = 0; r < rows_per_thread; ++r) row[r] = value(first_row + r, k0 + k);
#pragma unroll
      for (int c = 0; c < columns_per_thread; ++c) {
        const int column = thread % dense_lanes + dense_lanes * c;
        if (column < columns) {
          const V w = staged[k * weights_pitch + column];
          for (int r = 0; r < rows_per_thread; ++r) sum[r][c] += row[r] * w;
        }
      }
    }
    __syncthreads();
  }
}

// Calls f(row, column, sum) for each of a thread's sums within `rows` and `columns`.
template <int rows_per_thread, typename V, typename F>
FOURFOLD_FN void for_each_sum(const V (&sum)[rows_per_thread][columns_per_thread], int rows, int columns, const F& f) {
  const int thread = static_cast<int>(threadIdx.x);
#pragma unroll
  for (int r = 0; r < rows_per_thread; ++r) {
#pragma unroll
    for (int c = 0; c < columns_per_thread; ++c) {
      const int row = thread / dense_lanes * rows_per_thread + r;
      const int column = thread % dense_lanes + dense_lanes * c;
      if (row < rows && column < columns) f(row, column, sum[r][c]);
    }
  }
}

}  // namespace fourfold::gpu
