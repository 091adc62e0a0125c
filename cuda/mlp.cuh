// The fused network: a block computes both layers for some rows, with the hidden layer in shared memory.
#pragma once

#include "activate.cuh"
#include "dense.cuh"
#include "launch.cuh"
#include "ops/mlp.h"

namespace fourfold::gpu {

constexpr int rows_across = dense_threads / dense_lanes;

// The shared memory of a block: two activations of its rows, and the staged weights.
template <typename T>
constexpr int64_t network_bytes(int rows, int64_t first_width, int64_t second_width) {
  using V = Compute<T>;
  return static_cast<int64_t>(sizeof(V)) * (rows * (first_width + second_width) + dense_depth<V> * weights_pitch);
}

static_assert(network_bytes<float>(rows_across, most_width, most_width) <= least_shared_bytes &&
              network_bytes<double>(rows_across, most_width, most_width) <= least_shared_bytes);

// Loads rows (count, width) of a tensor into shared memory; zeros after the tensor's last row.
template <int tile, typename V, typename T>
FOURFOLD_FN void load_rows(V* to, const T* from, int64_t first, int64_t rows, int width) {
  for (int at = static_cast<int>(threadIdx.x); at < tile * width; at += dense_threads) {
    const int64_t row = first + at / width;
    to[at] = row < rows ? static_cast<V>(from[row * width + at % width]) : V(0);
  }
  __syncthreads();
}

template <typename T, int rows_per_thread>
__global__ void __launch_bounds__(dense_threads) mlp_kernel(MlpForward job) {
  using V = Compute<T>;
  constexpr int tile = rows_across * rows_per_thread;
  const int inputs = static_cast<int>(job.input_size);
  const int hidden_size = static_cast<int>(job.hidden_size);
  const int outputs = static_cast<int>(job.output_size);
  const int64_t first = blockIdx.x * int64_t(tile);
  const int rows = static_cast<int>(min(int64_t(tile), job.batch - first));
  V* x = shared_memory<V>();
  V* hidden = x + tile * inputs;
  V* staged = hidden + tile * hidden_size;
  const T* w1 = static_cast<const T*>(job.hidden_weights);
  const T* b1 = static_cast<const T*>(job.hidden_bias);
  const T* w2 = static_cast<const T*>(job.output_weights);
  const T* b2 = static_cast<const T*>(job.output_bias);

  load_rows<tile>(x, static_cast<const T*>(job.x), first, job.batch, inputs);
  V sum[rows_per_thread][columns_per_thread];
  dense_product<true>(
      sum, staged, inputs, hidden_size, [&](int row, int k) { return x[row * inputs + k]; },
      [&](int column, int k) { return static_cast<V>(w1[column * inputs + k]); });
  T* kept = static_cast<T*>(job.hidden);
  for_each_sum(sum, tile, hidden_size, [&](int row, int column, V value) {
    const V activated = formulas::Relu::value(value + (b1 == nullptr ? V(0) : static_cast<V>(b1[column])));
    hidden[row * hidden_size + column] = activated;
    if (job.keep && row < rows) kept[(first + row) * hidden_size + column] = static_cast<T>(activated);
  });
  __syncthreads();
  dense_product<true>(
      sum, staged, hidden_size, outputs, [&](int row, int k) { return hidden[row * hidden_size + k]; },
      [&](int column, int k) { return static_cast<V>(w2[column * hidden_size + k]); });
  T* output = static_cast<T*>(job.output);
  for_each_sum(sum, rows, outputs, [&](int row, int column, V value) {
    output[(first + row) * outputs + column] =
        static_cast<T>(value + (b2 == nullptr ? V(0) : static_cast<V>(b2[column])));
  });
}

// The gradients of the hidden layer and of x, which are independent for each row.
template <typename T>
__global__ void __launch_bounds__(dense_threads) mlp_rows_backward_kernel(MlpBackward job) {
  using V = Compute<T>;
  constexpr int tile = rows_across;
  const int inputs = static_cast<int>(job.input_size);
  const int hidden_size = static_cast<int>(job.hidden_size);
  const int outputs = static_cast<int>(job.output_size);
  const int64_t first = blockIdx.x * int64_t(tile);
  const int rows = static_cast<int>(min(int64_t(tile), job.batch - first));
  V* grad = shared_memory<V>();
  V* grad_hidden = grad + tile * outputs;
  V* staged = grad_hidden + tile * hidden_size;
  const T* w1 = static_cast<const T*>(job.hidden_weights);
  const T* w2 = static_cast<const T*>(job.output_weights);
  const T* activated = static_cast<const T*>(job.hidden);

  load_rows<tile>(grad, static_cast<const T*>(job.grad), first, job.batch, outputs);
  V sum[1][columns_per_thread];
  dense_product<false>(
      sum, staged, outputs, hidden_size, [&](int row, int k) { return grad[row * outputs + k]; },
      [&](int column, int k) { return static_cast<V>(w2[k * hidden_size + column]); });
  T* kept = static_cast<T*>(job.grad_hidden);
  for_each_sum(sum, tile, hidden_size, [&](int row, int column, V value) {
    V result = V(0);
    if (row < rows) {
      const int64_t at = (first + row) * hidden_size + column;
      result = formulas::Relu::backward(value, static_cast<V>(activated[at]));
      kept[at] = static_cast<T>(result);
    }
    grad_hidden[row * hidden_size + column] = result;
  });
  if (!job.need_x) return;
  __syncthreads();
  dense_product<false>(
      sum, staged, hidden_size, inputs, [&](int row, int k) { return grad_hidden[row * hidden_size + k]; },
      [&](int column, int k) { return static_cast<V>(w1[k * inputs + column]); });
  T* grad_x = static_cast<T*>(job.grad_x);
  for_each_sum(sum, rows, inputs, [&](int row, int column, V value) {
    grad_x[(first + row) * inputs + column] = static_cast<T>(value);
  });
}

// leftᵀ right (height, width), summed over the batch in order, and the sum of left's rows.
template <typename T>
struct WeightsGradient {
  const T* left;   // (batch, height)
  const T* right;  // (batch, width)
  int height;
  int width;
  T* weights;      // out (height, width)
  T* bias;         // out (height)
};

// Each block computes 16 rows of one layer's gradient; the hidden layer's blocks come first.
template <typename T>
__global__ void __launch_bounds__(dense_threads)
    mlp_weights_backward_kernel(int64_t batch, WeightsGradient<T> hidden, WeightsGradient<T> output) {
  using V = Compute<T>;
  const int hidden_blocks = (hidden.height + rows_across - 1) / rows_across;
  const bool second = static_cast<int>(blockIdx.x) >= hidden_blocks;
  // A copy, because a reference to one of two arguments would put both into local memory.
  const WeightsGradient<T> job{
      second ? output.left : hidden.left,       second ? output.right : hidden.right,
      second ? output.height : hidden.height,   second ? output.width : hidden.width,
      second ? output.weights : hidden.weights, second ? output.bias : hidden.bias,
  };
  const int first = (static_cast<int>(blockIdx.x) - (second ? hidden_blocks : 0)) * rows_across;
  const int rows = min(rows_across, job.height - first);
  V* staged = shared_memory<V>();
  V sum[1][columns_per_thread];
  V total = V(0);
  dense_product<false>(
      sum, staged, static_cast<int>(batch), job.width,
      [&](int row, int k) {
        const V value = row < rows ? static_cast<V>(job.left[int64_t(k) * job.height + first + row]) : V(0);
        total += value;
        return value;
      },
      [&](int column, int k) { return static_cast<V>(job.right[int64_t(k) * job.width + column]); });
  for_each_sum(sum, rows, job.width, [&](int row, int column, V value) {
    job.weights[(first + row) * job.width + column] = static_cast<T>(value);
  });
  const int row = static_cast<int>(threadIdx.x) / dense_lanes;
  if (threadIdx.x % dense_lanes == 0 && row < rows) job.bias[first + row] = static_cast<T>(total);
}

}  // namespace fourfold::gpu
