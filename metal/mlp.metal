// The fused network: a threadgroup computes both layers for some rows, with the hidden layer in threadgroup memory.
// Products use 8 x 8 simdgroup matrices, in float.
#include "math.h"

namespace fourfold {
#include "formulas/activations.h"
#include "jobs.h"

enum {
  mlp_depth = 16,  // of the weights in a stage
  simdgroup_columns = 16
};

struct Place {
  uint at;
  uint simdgroup;
};

// A simdgroup's part of a product: all rows, 16 columns.
struct Sums {
  metal::simdgroup_float8x8 of[2][2];

  void clear() {
    for (int r = 0; r < 2; ++r) {
      for (int c = 0; c < 2; ++c) of[r][c] = metal::make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    }
  }

  // Accumulates the product over 8 of the depth. Both factors are parts of tiles.
  void add(threadgroup const float* rows, threadgroup const float* columns) {
    for (int r = 0; r < 2; ++r) {
      metal::simdgroup_float8x8 a;
      metal::simdgroup_load(a, rows + 8 * r * mlp_pitch, mlp_pitch);
      for (int c = 0; c < 2; ++c) {
        metal::simdgroup_float8x8 b;
        metal::simdgroup_load(b, columns + 8 * c, mlp_pitch);
        metal::simdgroup_multiply_accumulate(of[r][c], a, b, of[r][c]);
      }
    }
  }

  void store(threadgroup float* to) const {
    for (int r = 0; r < 2; ++r) {
      for (int c = 0; c < 2; ++c) metal::simdgroup_store(of[r][c], to + 8 * r * mlp_pitch + 8 * c, mlp_pitch);
    }
  }
};

// The layout of the weights as a product's second factor: (columns, depth) in the forward, (depth, columns) in the
// backward. Consecutive threads read consecutive elements.
struct ByColumn {
  static Index at(Index k, Index column, Index depth, Index) { return column * depth + k; }
  static uint k_of(uint i, uint) { return i % mlp_depth; }
  static uint column_of(uint i, uint) { return i / mlp_depth; }
};

struct ByDepth {
  static Index at(Index k, Index column, Index, Index columns) { return k * columns + column; }
  static uint k_of(uint i, uint columns) { return i / columns; }
  static uint column_of(uint i, uint columns) { return i % columns; }
};

inline uint padded(uint columns) { return (columns + simdgroup_columns - 1) / simdgroup_columns * simdgroup_columns; }

// result = rows weights. `result` and `rows` are tiles (mlp_rows, mlp_pitch): `rows` must be zero from the depth up to
// a multiple of 8, and `result` becomes zero from `columns` to `padded(columns)`. All threads call it; `staged` is a
// scratch tile.
template <typename Lie, typename T>
inline void multiply(
    threadgroup float* result, threadgroup const float* rows, threadgroup float* staged, device const T* weights,
    uint depth, uint columns, Place place) {
  const uint first_column = place.simdgroup * simdgroup_columns;
  const uint width = padded(columns);
  Sums sums;
  sums.clear();
  for (uint k0 = 0; k0 < depth; k0 += mlp_depth) {
    for (uint i = place.at; i < mlp_depth * width; i += mlp_threads) {
      const uint k = Lie::k_of(i, width);
      const uint column = Lie::column_of(i, width);
      const bool there = k0 + k < depth && column < columns;
      staged[k * mlp_pitch + column] = there ? float(weights[Lie::at(k0 + k, column, depth, columns)]) : 0.0f;
    }
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    for (uint k = 0; k < mlp_depth && k0 + k < depth && first_column < width; k += 8) {
      sums.add(rows + k0 + k, staged + k * mlp_pitch + first_column);
    }
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
  }
  if (first_column < width) sums.store(result + first_column);
  metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
}

// Loads rows (count, width) of a tensor into a tile; zeros after the tensor's last row and column.
template <typename T>
inline void load_rows(threadgroup float* tile, device const T* from, Index first, Index rows, uint width, Place place) {
  const uint columns = padded(width);
  for (uint i = place.at; i < mlp_rows * columns; i += mlp_threads) {
    const uint row = i / columns;
    const uint column = i % columns;
    const bool there = first + row < rows && column < width;
    tile[row * mlp_pitch + column] = there ? float(from[(first + row) * width + column]) : 0.0f;
  }
  metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
}

template <typename T>
[[kernel, max_total_threads_per_threadgroup(mlp_threads)]] void mlp_forward(
    constant MlpJob& job [[buffer(0)]], device const T* x [[buffer(1)]], device const T* hidden_weights [[buffer(2)]],
    device const T* hidden_bias [[buffer(3)]], device const T* output_weights [[buffer(4)]],
    device const T* output_bias [[buffer(5)]], device T* hidden [[buffer(6)]], device T* output [[buffer(7)]],
    threadgroup float* shared [[threadgroup(0)]], uint group [[threadgroup_position_in_grid]],
    uint at [[thread_index_in_threadgroup]], uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  const Place place = {at, simdgroup};
  const Index first = Index(group) * mlp_rows;
  const uint inputs = job.input_size;
  const uint units = job.hidden_size;
  const uint outputs = job.output_size;
  threadgroup float* one = shared;
  threadgroup float* other = shared + mlp_tile;
  threadgroup float* staged = shared + 2 * mlp_tile;
  load_rows(one, x, first, job.batch, inputs, place);
  multiply<ByColumn>(other, one, staged, hidden_weights, inputs, units, place);
  for (uint i = at; i < mlp_rows * units; i += mlp_threads) {
    const uint unit = i % units;
    const Index row = first + i / units;
    threadgroup float& value = other[i / units * mlp_pitch + unit];
    const float z = value + ((job.has & has_hidden_bias) != 0 ? float(hidden_bias[unit]) : 0.0f);
    value = Relu::value(z);
    if ((job.has & has_hidden) != 0 && row < job.batch) hidden[row * units + unit] = T(value);
  }
  metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
  multiply<ByColumn>(one, other, staged, output_weights, units, outputs, place);
  for (uint i = at; i < mlp_rows * outputs; i += mlp_threads) {
    const uint column = i % outputs;
    const Index row = first + i / outputs;
    const float bias = (job.has & has_output_bias) != 0 ? float(output_bias[column]) : 0.0f;
    if (row < job.batch) output[row * outputs + column] = T(one[i / outputs * mlp_pitch + column] + bias);
  }
}

// The gradients of the hidden layer before relu and of x, which are independent for each row.
template <typename T>
[[kernel, max_total_threads_per_threadgroup(mlp_threads)]] void mlp_rows_backward(
    constant MlpJob& job [[buffer(0)]], device const T* grad [[buffer(1)]],
    device const T* hidden_weights [[buffer(2)]], device const T* output_weights [[buffer(3)]],
    device const T* hidden [[buffer(4)]], device T* grad_hidden [[buffer(5)]], device T* grad_x [[buffer(6)]],
    threadgroup float* shared [[threadgroup(0)]], uint group [[threadgroup_position_in_grid]],
    uint at [[thread_index_in_threadgroup]], uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  const Place place = {at, simdgroup};
  const Index first = Index(group) * mlp_rows;
  const uint inputs = job.input_size;
  const uint units = job.hidden_size;
  const uint outputs = job.output_size;
  threadgroup float* one = shared;
  threadgroup float* other = shared + mlp_tile;
  threadgroup float* staged = shared + 2 * mlp_tile;
  load_rows(one, grad, first, job.batch, outputs, place);
  multiply<ByDepth>(other, one, staged, output_weights, outputs, units, place);
  for (uint i = at; i < mlp_rows * units; i += mlp_threads) {
    const Index row = first + i / units;
    if (row >= job.batch) continue;  // the rest of the tile is zero
    const Index element = row * units + i % units;
    threadgroup float& value = other[i / units * mlp_pitch + i % units];
    value = Relu::backward(value, float(hidden[element]));
    grad_hidden[element] = T(value);
  }
  if ((job.has & has_grad_x) == 0) return;  // uniform, so no thread waits at the barrier
  metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
  multiply<ByDepth>(one, other, staged, hidden_weights, units, inputs, place);
  for (uint i = at; i < mlp_rows * inputs; i += mlp_threads) {
    const Index row = first + i / inputs;
    if (row < job.batch) grad_x[row * inputs + i % inputs] = T(one[i / inputs * mlp_pitch + i % inputs]);
  }
}

// weights (height, width) = leftᵀ right, summed over the batch in order; bias = the sum of left's rows.
template <typename T>
[[kernel, max_total_threads_per_threadgroup(mlp_threads)]] void mlp_weights_backward(
    constant MlpWeightsJob& job [[buffer(0)]], device const T* left [[buffer(1)]], device const T* right [[buffer(2)]],
    device T* weights [[buffer(3)]], device T* bias [[buffer(4)]], threadgroup float* shared [[threadgroup(0)]],
    uint group [[threadgroup_position_in_grid]], uint at [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  const uint height = job.height;
  const uint width = job.width;
  const uint columns = padded(width);
  const uint first = group * mlp_rows;
  const uint first_column = simdgroup * simdgroup_columns;
  threadgroup float* rows = shared;
  threadgroup float* staged = shared + mlp_tile;
  float total = 0.0f;
  Sums sums;
  sums.clear();
  for (Index k0 = 0; k0 < job.batch; k0 += mlp_depth) {
    for (uint i = at; i < mlp_depth * mlp_rows; i += mlp_threads) {
      const Index k = k0 + i / mlp_rows;
      const uint row = first + i % mlp_rows;
      rows[i % mlp_rows * mlp_pitch + i / mlp_rows] =
          k < job.batch && row < height ? float(left[k * height + row]) : 0.0f;
    }
    for (uint i = at; i < mlp_depth * columns; i += mlp_threads) {
      const Index k = k0 + i / columns;
      const uint column = i % columns;
      staged[i / columns * mlp_pitch + column] =
          k < job.batch && column < width ? float(right[k * width + column]) : 0.0f;
    }
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    for (uint k = 0; k < mlp_depth && first_column < columns; k += 8) {
      sums.add(rows + k, staged + k * mlp_pitch + first_column);
    }
    for (uint k = 0; k < mlp_depth && at < mlp_rows; ++k) total += rows[at * mlp_pitch + k];
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
  }
  if (first_column < columns) sums.store(staged + first_column);
  metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
  for (uint i = at; i < mlp_rows * width; i += mlp_threads) {
    const uint row = first + i / width;
    if (row < height) weights[Index(row) * width + i % width] = T(staged[i / width * mlp_pitch + i % width]);
  }
  if (at < mlp_rows && first + at < height) bias[first + at] = T(total);
}

}  // namespace fourfold
