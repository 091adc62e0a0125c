// A whole sequence in one launch: each block owns 8 hidden units, keeps their part of the recurrent weights in
// registers from the first step to the last, and tells the others by a flag when its part of a step is there to read.
//
// The 8 warps of a block share out the depth of the product: each multiplies its part of the rows by its part of the
// weights and the sums meet in shared memory, where one thread per row and unit applies the cell. A warp waits only for
// the blocks whose units it reads. What is exchanged between blocks (h, or the gradient of the gates) goes through the
// tensors that the layer returns or keeps anyway, in which each step has rows of its own, so nothing is overwritten
// that somebody may still read.
#pragma once

#include "cell.cuh"
#include "launch.cuh"
#include "mma.cuh"
#include "ops/recurrent_job.h"

namespace fourfold::gpu {

constexpr int block_units = 8;
constexpr int warps = 8;  // of 32 lanes
constexpr int persistent_threads = warps * group_size;
constexpr int most_rows = 64;
constexpr int row_tile = 16;
constexpr int tile_values = row_tile * block_units;
constexpr int values_per_thread = most_rows * block_units / persistent_threads;

struct Sequence {
  int time;
  int batch;
  int hidden_size;
  int row_tiles;
  bool reverse;
  int64_t rows;             // of all steps
  int lengths[most_rows];   // of each row of the batch, longest first
  uint32_t* flags;          // one a block, zero at launch: how many steps it has finished
};

template <typename T>
struct PersistentForward {
  Sequence sequence;
  const T* weights;  // (gates * hidden_size, hidden_size)
  int64_t leading_dim;
  const T* projection;
  T* activated;
  T* cells;
  T* output;
  const T* h;  // (batch, hidden_size)
  float* c;    // (batch, hidden_size)
};

template <typename T>
struct PersistentBackward {
  Sequence sequence;
  const T* weights;
  int64_t leading_dim;
  const T* activated;
  const T* cells;
  const T* grad_output;
  T* grad_gates;
  float* grad_h;
  float* grad_c;
};

// Where a walk over the steps stands: step t has `active` rows from `first` on.
struct Step {
  int t;
  int active;
  int64_t first;

  // The first step of a walk that begins at either end.
  static FOURFOLD_FN Step at_end(const Sequence& sequence, bool last) {
    Step step{last ? sequence.time - 1 : 0, sequence.batch, 0};
    if (!last) return step;
    while (step.active > 0 && sequence.lengths[step.active - 1] < sequence.time) --step.active;
    step.first = sequence.rows - step.active;
    return step;
  }

  FOURFOLD_FN Step later(const Sequence& sequence) const {
    Step next{t + 1, active, first + active};
    while (next.active > 0 && sequence.lengths[next.active - 1] <= next.t) --next.active;
    return next;
  }

  FOURFOLD_FN Step earlier(const Sequence& sequence) const {
    Step next{t - 1, active, 0};
    while (next.active < sequence.batch && sequence.lengths[next.active] > next.t) ++next.active;
    next.first = first - next.active;
    return next;
  }

  FOURFOLD_FN Step next(const Sequence& sequence, bool backwards) const {
    return backwards ? earlier(sequence) : later(sequence);
  }
};

// Waits until the blocks that own units [begin, end) have finished so many steps. All threads call it, those with nothing
// to wait for too: a wavefront of 64 holds two warps of the kernel, which have to stay together.
FOURFOLD_FN void wait_for(const Sequence& sequence, int begin, int end, uint32_t steps) {
  const int lane = static_cast<int>(threadIdx.x) % group_size;
  for (int block = begin / block_units + lane; block * block_units < end; block += group_size) {
    while (read_flag(sequence.flags + block) < steps) pause();
  }
  sync_group();
}

// After every thread of the block has stored its part of the step.
FOURFOLD_FN void finish_step(const Sequence& sequence, uint32_t steps) {
  __syncthreads();
  if (threadIdx.x == 0) raise_flag(sequence.flags + blockIdx.x, steps);
}

template <typename T>
FOURFOLD_FN Slot read_slot(const T* from) {
  const uint4 bytes = load_written(from);
  return {{bytes.x, bytes.y, bytes.z, bytes.w}};
}

// Values at any distance, as a slot.
template <typename T>
FOURFOLD_FN Slot gather_slot(const T* from, int64_t stride) {
  Pack<T, slot_size<T>> values;
  for (int e = 0; e < slot_size<T>; ++e) values.v[e] = from[e * stride];
  return *reinterpret_cast<const Slot*>(&values);
}

// Chunks of a row that are asked for before the first of them is used: as many as registers hold beside the weights.
template <typename T, Rounding rounding>
constexpr int chunks_in_flight = !std::is_same_v<T, float> ? 12 : rounding == Rounding::tf32 ? 6 : 3;

// sum[column] += the warp's part of a tile of rows times the same part of its columns. rows are those that this lane
// brings, g and g + 8, or null; the lane's first slot is at `slot_k` of `depth`.
template <typename T, Rounding rounding, int chunks, int columns>
FOURFOLD_FN void multiply_rows(float (&sum)[columns][4], const T* const (&rows)[2], int slot_k, int depth,
                               const Slot (&weights)[chunks][columns]) {
  constexpr int in_flight = chunks < chunks_in_flight<T, rounding> ? chunks : chunks_in_flight<T, rounding>;
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
#pragma unroll
    for (int n = 0; n < in_flight && first + n < chunks; ++n) {
      for (int column = 0; column < columns; ++column) {
        multiply_tile<T, rounding>(sum[column], slots[n][0], slots[n][1], weights[first + n][column]);
      }
    }
  }
}

// sums[warp][tile][row][unit]: the warps' parts of a product, a tile for each 16 rows and column of sum.
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

// One of the elements of a step that a thread sees to; `k` counts them.
struct Element {
  int row;    // of the batch
  int unit;   // of the layer
  int tile;   // of rows
  int value;  // within the tile

  static FOURFOLD_FN Element of_thread(int k) {
    const int at = static_cast<int>(threadIdx.x) + k * persistent_threads;
    return {at / block_units, static_cast<int>(blockIdx.x) * block_units + at % block_units, at / tile_values,
            at % tile_values};
  }
};

// A thread's elements of a state (batch, hidden_size), which it keeps in registers from step to step.
struct State {
  float v[values_per_thread];

  FOURFOLD_FN void load(const Sequence& sequence, const float* from) {
    for (int n = 0; n < values_per_thread; ++n) {
      const Element e = Element::of_thread(n);
      const bool there = e.row < sequence.batch && e.unit < sequence.hidden_size;
      v[n] = there ? from[int64_t(e.row) * sequence.hidden_size + e.unit] : 0.0f;
    }
  }

  FOURFOLD_FN void store(const Sequence& sequence, float* to) const {
    for (int n = 0; n < values_per_thread; ++n) {
      const Element e = Element::of_thread(n);
      if (e.row < sequence.batch && e.unit < sequence.hidden_size) {
        to[int64_t(e.row) * sequence.hidden_size + e.unit] = v[n];
      }
    }
  }
};

template <typename Cell, typename T>
struct Projection {
  float v[values_per_thread][Cell::gates];

  FOURFOLD_FN void load(const PersistentForward<T>& job, const Step& step) {
    const int size = job.sequence.hidden_size;
    for (int n = 0; n < values_per_thread; ++n) {
      const Element e = Element::of_thread(n);
      if (e.row >= step.active || e.unit >= size) continue;
      for (int g = 0; g < Cell::gates; ++g) {
        v[n][g] = static_cast<float>(job.projection[((step.first + e.row) * Cell::gates + g) * size + e.unit]);
      }
    }
  }
};

template <typename Cell, typename T>
FOURFOLD_FN void finish_forward(const PersistentForward<T>& job, const Step& step, const float* sums,
                                const Projection<Cell, T>& projection, State& c) {
  constexpr int gates = Cell::gates;
  const int size = job.sequence.hidden_size;
  for (int n = 0; n < values_per_thread; ++n) {
    const Element e = Element::of_thread(n);
    if (e.row >= step.active || e.unit >= size) continue;
    typename Cell::template Gates<float> values;
    for (int g = 0; g < gates; ++g) {
      values.v[g] =
          projection.v[n][g] + total_of(sums, job.sequence.row_tiles * gates, e.tile * gates + g, e.value);
    }
    const auto next = Cell::forward(values, c.v[n]);
    c.v[n] = next.c;
    const int64_t row = step.first + e.row;
    job.output[row * size + e.unit] = static_cast<T>(next.h);
    if (job.activated == nullptr) continue;
    job.cells[row * size + e.unit] = static_cast<T>(next.c);
    for (int g = 0; g < gates; ++g) {
      job.activated[(row * gates + g) * size + e.unit] = static_cast<T>(next.activated.v[g]);
    }
  }
}

template <typename Cell, typename T, Rounding rounding, int chunks>
__global__ void __launch_bounds__(persistent_threads, 1) persistent_forward(PersistentForward<T> job) {
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
  State c;
  c.load(sequence, job.c);

  Step step = Step::at_end(sequence, sequence.reverse);
  Step before{};  // no row had a step before the first
  for (int s = 0; s < sequence.time; ++s) {
    Projection<Cell, T> projection;
    projection.load(job, step);  // before the wait, so that it arrives meanwhile
    if (s > 0) wait_for(sequence, first_k, end_k, s);
    for (int tile = 0; tile < sequence.row_tiles; ++tile) {
      const T* rows[2];
      for (int side = 0; side < 2; ++side) {
        const int row = tile * row_tile + side * 8 + lane / 4;
        rows[side] = row >= step.active   ? nullptr
                     : row < before.active ? job.output + (before.first + row) * size
                                           : job.h + int64_t(row) * size;
      }
      float sum[gates][4] = {};
      multiply_rows<T, rounding>(sum, rows, slot_k, size, weights);
      store_sums(sums, sequence.row_tiles * gates, tile, sum);
    }
    __syncthreads();
    finish_forward(job, step, sums, projection, c);
    finish_step(sequence, s + 1);
    before = step;
    step = step.next(sequence, sequence.reverse);
  }
  c.store(sequence, job.c);
}

template <typename Cell, typename T>
FOURFOLD_FN void gradients_of_gates(const PersistentBackward<T>& job, const Step& step, const State& grad_h,
                                    State& grad_c) {
  constexpr int gates = Cell::gates;
  const int size = job.sequence.hidden_size;
  for (int n = 0; n < values_per_thread; ++n) {
    const Element e = Element::of_thread(n);
    if (e.row >= step.active || e.unit >= size) continue;
    const int64_t row = step.first + e.row;
    typename Cell::template Gates<float> values;
    for (int g = 0; g < gates; ++g) {
      values.v[g] = static_cast<float>(job.activated[(row * gates + g) * size + e.unit]);
    }
    const float grad = grad_h.v[n] + read_or_zero<float>(job.grad_output, row * size + e.unit);
    const auto result = Cell::backward(values, static_cast<float>(job.cells[row * size + e.unit]), grad, grad_c.v[n]);
    grad_c.v[n] = result.grad_c;
    for (int g = 0; g < gates; ++g) {
      job.grad_gates[(row * gates + g) * size + e.unit] = static_cast<T>(result.grad_gates.v[g]);
    }
  }
}

template <typename Cell, typename T, Rounding rounding, int chunks>
__global__ void __launch_bounds__(persistent_threads, 1) persistent_backward(PersistentBackward<T> job) {
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
  State grad_c;
  grad_h.load(sequence, job.grad_h);
  grad_c.load(sequence, job.grad_c);

  Step step = Step::at_end(sequence, !sequence.reverse);
  for (int s = 0; s < sequence.time; ++s) {
    gradients_of_gates<Cell>(job, step, grad_h, grad_c);
    finish_step(sequence, s + 1);
    // A warp's part of the depth goes from one gate into the next, and so over any units.
    wait_for(sequence, 0, size, s + 1);
    for (int tile = 0; tile < sequence.row_tiles; ++tile) {
      const T* rows[2];
      for (int side = 0; side < 2; ++side) {
        const int row = tile * row_tile + side * 8 + lane / 4;
        rows[side] = row < step.active ? job.grad_gates + (step.first + row) * depth : nullptr;
      }
      float sum[1][4] = {};
      multiply_rows<T, rounding>(sum, rows, slot_k, depth, weights);
      store_sums(sums, sequence.row_tiles, tile, sum);
    }
    __syncthreads();
    for (int n = 0; n < values_per_thread; ++n) {
      const Element e = Element::of_thread(n);
      if (e.row < step.active) grad_h.v[n] = total_of(sums, sequence.row_tiles, e.tile, e.value);
    }
    step = step.next(sequence, !sequence.reverse);
  }
  grad_h.store(sequence, job.grad_h);
  grad_c.store(sequence, job.grad_c);
}

}  // namespace fourfold::gpu
