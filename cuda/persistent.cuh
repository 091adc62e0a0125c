// A whole sequence in one launch: each block owns 8 hidden units, keeps their part of the recurrent weights in
// registers from the first step to the last, and sets a flag when its part of a step is written.
//
// The 8 warps of a block split the depth of the product: each multiplies its part of the rows by its part of the
// weights; the sums are combined in shared memory, where one thread per row and unit applies the cell. A warp waits
// only for the blocks whose units it reads. Blocks exchange values (h, or the gradient of the gates) through the
// tensors that the layer returns or saves anyway. Each step has its own rows there, so nothing is overwritten while
// other blocks may read it.
#pragma once

#include "launch.cuh"
#include "mma.cuh"
#include "sequence.cuh"

namespace fourfold::gpu {

template <typename T>
struct PersistentForward {
  Sequence sequence;
  const T* weights;  // (gates * hidden_size, hidden_size)
  int64_t leading_dim;
  const T* bias;        // (gates * hidden_size) of the recurrent part, or null
  const T* projection;  // (rows, gates * hidden_size)
  T* kept;              // (rows, kept * hidden_size), or null
  T* cells;             // (rows, hidden_size), or null
  T* output;            // (rows, hidden_size)
  const T* h_0;         // (batch, hidden_size), like the next ones; aligned to 16 bytes
  const T* state_0;     // c_0, or h_0 if the cell has no c
  T* c_n;               // or null
};

template <typename T>
struct PersistentBackward {
  Sequence sequence;
  const T* weights;
  int64_t leading_dim;
  const T* kept;
  const T* states;  // (rows, hidden_size) after each step: cells, or output if the cell has no c
  const T* state_0;
  const T* grad_output;  // or null
  const T* grad_h_n;     // or null
  const T* grad_c_n;     // or null
  T* grad_gates;         // (rows, grads * hidden_size)
  bool need_states;      // whether to write the next two
  T* grad_h_0;
  T* grad_c_0;  // null if the cell has no c
};

template <typename T>
FOURFOLD_FN Slot read_slot(const T* from) {
  const uint4 bytes = load_written(from);
  return {{bytes.x, bytes.y, bytes.z, bytes.w}};
}

// Gathers strided values into a slot.
template <typename T>
FOURFOLD_FN Slot gather_slot(const T* from, int64_t stride) {
  AlignedVector<T, slot_size<T>> values;
  for (int e = 0; e < slot_size<T>; ++e) values.v[e] = from[e * stride];
  return *reinterpret_cast<const Slot*>(&values);
}

template <typename T, Rounding rounding>
constexpr bool unrounded = std::is_same_v<T, float> && rounding == Rounding::none;

// The number of a row's chunks that are loaded before the first one is used: as many as fit the registers besides the
// weights.
template <typename T, Rounding rounding, int chunks>
constexpr int chunks_in_flight = !std::is_same_v<T, float> ? 12 : rounding == Rounding::tf32 ? 6 : chunks <= 16 ? 3 : 2;

// sum[column] += the warp's part of a tile of rows times the same part of its columns. rows: this lane's rows g and g +
// 8, or null. slot_k: the position of the lane's first slot in the depth.
template <typename T, Rounding rounding, int chunks, int columns>
FOURFOLD_FN void multiply_rows(float (&sum)[columns][4], const T* const (&rows)[2], int slot_k, int depth,
                               const Slot (&weights)[chunks][columns]) {
  constexpr int most = chunks_in_flight<T, rounding, chunks>;
  constexpr int in_flight = chunks < most ? chunks : most;
#pragma unroll
  for (int first = 0; first < chunks; first += in_flight) {
    Slot slots[in_flight][2] = {};
#pragma unroll
    for (int n = 0; n < in_flight && first + n < chunks; ++n) {
      const int k = slot_k + (first + n) * chunk_depth<T>;
      for (int side = 0; side < 2; ++side) {
        if (rows[side] != nullptr && k < depth) slots[n][side] = read_slot(rows[side] + k);
      }
    }
    // The tensor cores truncate sums towards zero. In unrounded float32 this error would accumulate to more than that
    // of the products, so these chunks start from zero, and ordinary additions, which round, combine them.
    float part[columns][4] = {};
#pragma unroll
    for (int n = 0; n < in_flight && first + n < chunks; ++n) {
      for (int column = 0; column < columns; ++column) {
        multiply_tile<T, rounding>(unrounded<T, rounding> ? part[column] : sum[column], slots[n][0], slots[n][1],
                                   weights[first + n][column]);
      }
    }
    for (int column = 0; column < columns && unrounded<T, rounding>; ++column) {
      for (int k = 0; k < 4; ++k) sum[column][k] += part[column][k];
    }
  }
}

// sums[warp][tile][row][unit]: the warps' partial sums of a product, one tile for each 16 rows and each column of sum.
template <int columns>
FOURFOLD_FN void store_sums(float* sums, int tiles, int row_tile, const float (&sum)[columns][4]) {
  const int lane = static_cast<int>(threadIdx.x) % group_size;
  const int warp = static_cast<int>(threadIdx.x) / group_size;
  for (int column = 0; column < columns; ++column) {
    float* tile = sums + (warp * tiles + row_tile * columns + column) * tile_values;
    float* at = tile + lane / 4 * block_units + lane % 4 * 2;
    at[0] = sum[column][0];
    at[1] = sum[column][1];
    at[8 * block_units] = sum[column][2];
    at[8 * block_units + 1] = sum[column][3];
  }
}

FOURFOLD_FN float total_of(const float* sums, int tiles, int tile, int value) {
  float total = 0;
  for (int warp = 0; warp < warps; ++warp) total += sums[(warp * tiles + tile) * tile_values + value];
  return total;
}

inline int64_t sums_bytes(int row_tiles, int columns) {
  return int64_t(warps) * row_tiles * columns * tile_values * static_cast<int64_t>(sizeof(float));
}

template <typename Cell, typename T>
struct Projection {
  Values<float, Cell::gates> v[values_per_thread];

  FOURFOLD_FN void load(const PersistentForward<T>& job, const Step& step) {
    const int size = job.sequence.hidden_size;
#pragma unroll
    for (int n = 0; n < values_per_thread; ++n) {
      const Element e = Element::of_thread(n);
      if (e.row >= step.active || e.unit >= size) continue;
      const T* gates = job.projection + (step.first + e.row) * Cell::gates * size + e.unit;
      for (int g = 0; g < Cell::gates; ++g) v[n].v[g] = static_cast<float>(gates[g * size]);
    }
  }
};

template <typename Cell, typename T>
FOURFOLD_FN void finish_forward(const PersistentForward<T>& job, const Step& step, const float* sums,
                                const Projection<Cell, T>& projection, State& state) {
  constexpr int gates = Cell::gates;
  const int size = job.sequence.hidden_size;
#pragma unroll
  for (int n = 0; n < values_per_thread; ++n) {
    const Element e = Element::of_thread(n);
    if (e.row >= step.active || e.unit >= size) continue;
    Values<float, gates> hidden;
    for (int g = 0; g < gates; ++g) {
      // The bias is loaded in each step, because the weights leave no registers for it.
      hidden.v[g] = read_or_zero<float>(job.bias, g * size + e.unit) +
                    total_of(sums, job.sequence.row_tiles * gates, e.tile * gates + g, e.value);
    }
    const auto next =
        Cell::forward(projection.v[n], hidden, step.restarts(job.sequence, e.row) ? 0.0f : state.v[n]);
    state.v[n] = next.state;
    const int64_t row = step.first + e.row;
    job.output[row * size + e.unit] = static_cast<T>(next.h);
    if (job.kept == nullptr) continue;
    if (Cell::has_c) job.cells[row * size + e.unit] = static_cast<T>(next.state);
    for (int k = 0; k < Cell::kept; ++k) {
      job.kept[(row * Cell::kept + k) * size + e.unit] = static_cast<T>(next.kept.v[k]);
    }
  }
}

template <typename Cell, typename T, Rounding rounding, int chunks>
__global__ void __launch_bounds__(persistent_threads, 1) persistent_forward(PersistentForward<T> job) {
  if constexpr (!tile_products_here) return;
  constexpr int gates = Cell::gates;
  const Sequence& sequence = job.sequence;
  const int size = sequence.hidden_size;
  const int lane = static_cast<int>(threadIdx.x) % group_size;
  const int first_k = static_cast<int>(threadIdx.x) / group_size * chunks * chunk_depth<T>;
  const int end_k = min(size, first_k + chunks * chunk_depth<T>);
  const int slot_k = first_k + lane % 4 * slot_size<T>;
  float* sums = shared_memory<float>();

  Slot weights[chunks][gates] = {};
#pragma unroll
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const int k = slot_k + chunk * chunk_depth<T>;
    const int64_t unit = int64_t(blockIdx.x) * block_units + lane / 4;
    for (int g = 0; g < gates && k < size; ++g) {
      weights[chunk][g] = gather_slot(job.weights + (g * size + unit) * job.leading_dim + k, 1);
    }
  }
  State state;
  state.load(sequence, job.state_0);

  Step step = Step::at_end(sequence, sequence.reverse);
  Step before{};  // no rows: the first step has no previous one
  for (int s = 0; s < sequence.time; ++s) {
    Projection<Cell, T> projection;
    projection.load(job, step);  // before the wait, to overlap with it
    if (s > 0) wait_for(sequence, first_k, end_k, s);
    for (int tile = 0; tile < sequence.row_tiles; ++tile) {
      const T* rows[2];
      for (int side = 0; side < 2; ++side) {
        const int row = tile * row_tile + side * 8 + lane / 4;
        rows[side] = row >= step.active || step.restarts(sequence, row) ? nullptr
                     : row < before.active ? job.output + (before.first + row) * size
                                           : job.h_0 + int64_t(row) * size;
      }
      float sum[gates][4] = {};
      multiply_rows<T, rounding>(sum, rows, slot_k, size, weights);
      store_sums(sums, sequence.row_tiles * gates, tile, sum);
    }
    __syncthreads();
    finish_forward(job, step, sums, projection, state);
    finish_step(sequence, s + 1);
    before = step;
    step = step.next(sequence, sequence.reverse);
  }
  state.store(sequence, job.c_n);
}

template <typename Cell, typename T>
FOURFOLD_FN void gradients_of_gates(const PersistentBackward<T>& job, const Step& step, const Step& before,
                                    const State& grad_h, State& grad_state) {
  const int size = job.sequence.hidden_size;
  const Before<T> states = step.state_before(job.sequence, before, job.states, job.state_0);
#pragma unroll
  for (int n = 0; n < values_per_thread; ++n) {
    const Element e = Element::of_thread(n);
    if (e.row >= step.active || e.unit >= size) continue;
    const int64_t row = step.first + e.row;
    Values<float, Cell::kept> kept;
    for (int k = 0; k < Cell::kept; ++k) {
      kept.v[k] = static_cast<float>(job.kept[(row * Cell::kept + k) * size + e.unit]);
    }
    const float grad = grad_h.v[n] + read_or_zero<float>(job.grad_output, row * size + e.unit);
    const auto result =
        Cell::backward(kept, read_or_zero<float>(states.row(e.row, size), e.unit),
                       static_cast<float>(job.states[row * size + e.unit]), grad, grad_state.v[n]);
    grad_state.v[n] = states.restarts(e.row) ? 0.0f : result.state;
    for (int g = 0; g < Cell::grads; ++g) {
      job.grad_gates[(row * Cell::grads + g) * size + e.unit] = static_cast<T>(result.gates.v[g]);
    }
  }
}

template <typename Cell, typename T, Rounding rounding, int chunks>
__global__ void __launch_bounds__(persistent_threads, 1) persistent_backward(PersistentBackward<T> job) {
  if constexpr (!tile_products_here) return;
  const Sequence& sequence = job.sequence;
  const int size = sequence.hidden_size;
  const int depth = Cell::gates * size;
  const int lane = static_cast<int>(threadIdx.x) % group_size;
  const int first_k = static_cast<int>(threadIdx.x) / group_size * chunks * chunk_depth<T>;
  const int slot_k = first_k + lane % 4 * slot_size<T>;
  float* sums = shared_memory<float>();

  Slot weights[chunks][1] = {};
#pragma unroll
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const int64_t k = slot_k + chunk * chunk_depth<T>;
    const int64_t unit = int64_t(blockIdx.x) * block_units + lane / 4;
    if (k < depth) weights[chunk][0] = gather_slot(job.weights + k * job.leading_dim + unit, job.leading_dim);
  }
  State grad_h;
  State grad_state;
  grad_h.load(sequence, job.grad_h_n);
  grad_state.load(sequence, job.grad_c_n);

  Step step = Step::at_end(sequence, !sequence.reverse);
  for (int s = 0; s < sequence.time; ++s) {
    const Step before = s + 1 < sequence.time ? step.next(sequence, !sequence.reverse) : Step{};
    gradients_of_gates<Cell>(job, step, before, grad_h, grad_state);
    if (!job.need_states && s + 1 == sequence.time) return;
    finish_step(sequence, s + 1);
    // A warp's part of the depth crosses gates, so it can include any units.
    wait_for(sequence, 0, size, s + 1);
    for (int tile = 0; tile < sequence.row_tiles; ++tile) {
      const T* rows[2];
      for (int side = 0; side < 2; ++side) {
        const int row = tile * row_tile + side * 8 + lane / 4;
        // The last slots belong to the recurrent part.
        const int64_t first = ((step.first + row) * Cell::grads + Cell::grads - Cell::gates) * size;
        rows[side] = row < step.active ? job.grad_gates + first : nullptr;
      }
      float sum[1][4] = {};
      multiply_rows<T, rounding>(sum, rows, slot_k, depth, weights);
      store_sums(sums, sequence.row_tiles, tile, sum);
    }
    __syncthreads();
#pragma unroll
    for (int n = 0; n < values_per_thread; ++n) {
      const Element e = Element::of_thread(n);
      if (e.row >= step.active) continue;
      const float total = total_of(sums, sequence.row_tiles, e.tile, e.value);
      grad_h.v[n] = step.restarts(sequence, e.row) ? 0.0f : total;
    }
    step = before;
  }
  if (!Cell::has_c) {
#pragma unroll
    for (int n = 0; n < values_per_thread; ++n) grad_h.v[n] += grad_state.v[n];
  }
  grad_h.store(sequence, job.grad_h_0);
  grad_state.store(sequence, job.grad_c_0);
}

}  // namespace fourfold::gpu
