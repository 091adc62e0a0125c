// One step of a recurrent layer: its product and its cell in one kernel, or only the cell after torch's product.
#pragma once

#include "cell.cuh"
#include "launch.cuh"

namespace fourfold::gpu {

constexpr int step_threads = 256;
constexpr int tile_rows = 16;
constexpr int tile_columns = 16;
constexpr int tile_depth = 64;

// The factors of a step's gates: rows of h, then of x, times the rows of weights.
template <typename T>
struct StepFactors {
  Before<T> h;
  const T* x;  // (rows, input_size); or null, with input_size 0, if the projection contains the input's part
  int64_t input_size;
  const T* weights;
  int64_t leading_dim;
};

template <typename T>
FOURFOLD_FN Compute<T> factor_at(const StepFactors<T>& factors, int64_t hidden_size, int64_t row, int64_t k) {
  if (k < hidden_size) return read_or_zero<Compute<T>>(factors.h.row(row, hidden_size), k);
  return static_cast<Compute<T>>(factors.x[row * factors.input_size + k - hidden_size]);
}

constexpr int64_t shared_values(int columns) { return int64_t(tile_rows + columns) * (tile_depth + 1); }

// The minimum number of blocks per multiprocessor. 0 lets the compiler choose, but it gives float64 too few registers.
template <typename T>
constexpr int step_blocks = std::is_same_v<T, double> ? 1 : 0;

// Each thread computes all gates of one row and one unit.
template <typename Cell, typename T, typename State>
__global__ void __launch_bounds__(step_threads, step_blocks<T>) step_kernel(StepFactors<T> factors, CellForward<T, State> job) {
  using V = Compute<T>;
  constexpr int pitch = tile_depth + 1;
  V* rows = shared_memory<V>();
  V* columns = rows + tile_rows * pitch;
  const int64_t size = job.hidden_size;
  const int64_t unit_tiles = (size + tile_columns - 1) / tile_columns;
  const int64_t first_unit = blockIdx.x % unit_tiles * tile_columns;
  const int64_t first_row = blockIdx.x / unit_tiles * tile_rows;
  const int thread = static_cast<int>(threadIdx.x);
  const int row = thread / tile_columns;
  const int column = thread % tile_columns;
  const int64_t depth = size + factors.input_size;

  V product[Cell::gates] = {};
  for (int64_t k0 = 0; k0 < depth; k0 += tile_depth) {
    for (int at = thread; at < tile_rows * tile_depth; at += step_threads) {
      const int64_t r = first_row + at / tile_depth;
      const int64_t k = k0 + at % tile_depth;
      rows[at / tile_depth * pitch + at % tile_depth] =
          r < job.rows && k < depth ? factor_at(factors, size, r, k) : V(0);
    }
    for (int at = thread; at < Cell::gates * tile_columns * tile_depth; at += step_threads) {
      const int line = at / tile_depth;
      const int64_t unit = first_unit + line % tile_columns;
      const int64_t k = k0 + at % tile_depth;
      const int64_t weight = (line / tile_columns * size + unit) * factors.leading_dim + k;
      columns[line * pitch + at % tile_depth] =
          unit < size && k < depth ? static_cast<V>(factors.weights[weight]) : V(0);
    }
    __syncthreads();
    for (int k = 0; k < tile_depth; ++k) {
      const V h = rows[row * pitch + k];
      for (int g = 0; g < Cell::gates; ++g) product[g] += h * columns[(g * tile_columns + column) * pitch + k];
    }
    __syncthreads();
  }
  if (first_row + row < job.rows && first_unit + column < size) {
    forward_unit<Cell>(job, first_row + row, first_unit + column, product);
  }
}

template <typename Cell, typename T, typename State>
__global__ void __launch_bounds__(step_threads) cell_kernel(CellForward<T, State> job) {
  const int64_t at = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
  const Compute<T> none[Cell::gates] = {};
  if (at < job.rows * job.hidden_size) forward_unit<Cell>(job, at / job.hidden_size, at % job.hidden_size, none);
}

template <typename Cell, typename T, typename State>
__global__ void __launch_bounds__(step_threads) cell_backward_kernel(CellBackward<T, State> job) {
  const int64_t at = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
  if (at < job.rows * job.hidden_size) backward_unit<Cell>(job, at / job.hidden_size, at % job.hidden_size);
}

// out (rows, columns) = a (rows, depth) b (depth, columns): a step's gradient of h from those of its gates. Zero for
// rows that restart.
template <typename T, typename State>
struct ProductJob {
  int64_t rows;
  int64_t depth;
  int64_t columns;
  const T* a;
  int64_t a_leading_dim;
  const T* b;
  int64_t b_leading_dim;
  const bool* reset;  // (rows), or null
  State* out;
};

template <typename T, typename State>
__global__ void __launch_bounds__(step_threads) product_kernel(ProductJob<T, State> job) {
  using V = Compute<T>;
  constexpr int pitch = tile_depth + 1;
  V* rows = shared_memory<V>();
  V* columns = rows + tile_rows * pitch;
  const int64_t column_tiles = (job.columns + tile_columns - 1) / tile_columns;
  const int64_t first_column = blockIdx.x % column_tiles * tile_columns;
  const int64_t first_row = blockIdx.x / column_tiles * tile_rows;
  const int thread = static_cast<int>(threadIdx.x);
  const int row = thread / tile_columns;
  const int column = thread % tile_columns;

  V product = 0;
  for (int64_t k0 = 0; k0 < job.depth; k0 += tile_depth) {
    for (int at = thread; at < tile_rows * tile_depth; at += step_threads) {
      const int64_t r = first_row + at / tile_depth;
      const int64_t k = k0 + at % tile_depth;
      rows[at / tile_depth * pitch + at % tile_depth] =
          r < job.rows && k < job.depth ? static_cast<V>(job.a[r * job.a_leading_dim + k]) : V(0);
    }
    for (int at = thread; at < tile_columns * tile_depth; at += step_threads) {
      const int64_t c = first_column + at % tile_columns;
      const int64_t k = k0 + at / tile_columns;
      columns[at % tile_columns * pitch + at / tile_columns] =
          c < job.columns && k < job.depth ? static_cast<V>(job.b[k * job.b_leading_dim + c]) : V(0);
    }
    __syncthreads();
    for (int k = 0; k < tile_depth; ++k) product += rows[row * pitch + k] * columns[column * pitch + k];
    __syncthreads();
  }
  if (first_row + row < job.rows && first_column + column < job.columns) {
    const bool restarts = job.reset != nullptr && job.reset[first_row + row];
    State* out = job.out + (first_row + row) * job.columns + first_column + column;
    *out = restarts ? State(0) : static_cast<State>(product);
  }
}

// to = a + b, (rows, columns); null means zero, and rows that restart are zero.
template <typename To, typename From>
struct SumJob {
  int64_t rows;
  int64_t columns;
  const From* a;
  const From* b;
  const bool* reset;  // (rows), or null
  To* to;             // may alias a
};

template <typename To, typename From>
__global__ void __launch_bounds__(step_threads) sum_kernel(SumJob<To, From> job) {
  using V = Compute<From>;
  const int64_t at = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
  if (at >= job.rows * job.columns) return;
  const bool restarts = job.reset != nullptr && job.reset[at / job.columns];
  const V sum = restarts ? V(0) : read_or_zero<V>(job.a, at) + read_or_zero<V>(job.b, at);
  job.to[at] = static_cast<To>(sum);
}

// The shared memory of a step's block with `columns` columns.
template <typename T>
constexpr int64_t step_bytes(int columns) {
  return static_cast<int64_t>(sizeof(Compute<T>)) * shared_values(columns);
}

static_assert(step_bytes<double>(Lstm::gates * tile_columns) <= least_shared_bytes);

inline int64_t tiles(int64_t rows, int64_t columns) {
  return (rows + tile_rows - 1) / tile_rows * ((columns + tile_columns - 1) / tile_columns);
}

template <typename Cell, typename T, typename State>
void step(Place place, const StepFactors<T>& factors, const CellForward<T, State>& job) {
  const int64_t bytes = step_bytes<T>(Cell::gates * tile_columns);
  launch(place, {tiles(job.rows, job.hidden_size), step_threads, bytes}, step_kernel<Cell, T, State>, factors, job);
}

inline int64_t unit_blocks(int64_t rows, int64_t hidden_size) {
  return (rows * hidden_size + step_threads - 1) / step_threads;
}

template <typename Cell, typename T, typename State>
void apply_cell(Place place, const CellForward<T, State>& job) {
  launch(place, {unit_blocks(job.rows, job.hidden_size), step_threads}, cell_kernel<Cell, T, State>, job);
}

template <typename Cell, typename T, typename State>
void apply_cell_backward(Place place, const CellBackward<T, State>& job) {
  launch(place, {unit_blocks(job.rows, job.hidden_size), step_threads}, cell_backward_kernel<Cell, T, State>, job);
}

template <typename T, typename State>
void multiply(Place place, const ProductJob<T, State>& job) {
  const int64_t bytes = step_bytes<T>(tile_columns);
  launch(place, {tiles(job.rows, job.columns), step_threads, bytes}, product_kernel<T, State>, job);
}

template <typename To, typename From>
void add(Place place, const SumJob<To, From>& job) {
  launch(place, {unit_blocks(job.rows, job.columns), step_threads}, sum_kernel<To, From>, job);
}

}  // namespace fourfold::gpu
