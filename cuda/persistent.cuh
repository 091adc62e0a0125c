// A whole sequence in one launch: each block owns 8 hidden units, and keeps their part of the recurrent weights in
// registers from the first step to the last.
//
// The 8 warps of a block split the depth of the product: each multiplies its part of the rows by its part of the
// weights; the sums are combined in shared memory, where one thread per row and unit applies the cell. Blocks pass
// values (h, or the gradient of the gates) to each other through the tensors that the layer returns or saves anyway:
// device.cuh tells how. Each step has its own rows there, so nothing is overwritten while other blocks may read it. What
// a step reads besides is loaded before it has to wait for the other blocks.
#pragma once

#include <initializer_list>

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
  T* output;            // (rows, hidden_size), filled with unwritten words
  const T* h_0;         // (batch, hidden_size), like the next ones; aligned to 16 bytes
  const T* state_0;     // c_0, or h_0 if the cell has no c
  T* c_n;               // or null

  // The same for the rows from there on.
  PersistentForward from_row(int64_t row) const {
    PersistentForward job = *this;
    for (const T** state : {&job.h_0, &job.state_0}) *state = at(*state, row * sequence.hidden_size);
    job.c_n = at(c_n, row * sequence.hidden_size);
    return job;
  }
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
  T* grad_gates;         // (rows, grads * hidden_size), filled with unwritten words
  bool need_states;      // whether to write the next two
  T* grad_h_0;
  T* grad_c_0;  // null if the cell has no c

  PersistentBackward from_row(int64_t row) const {
    PersistentBackward job = *this;
    for (const T** state : {&job.state_0, &job.grad_h_n, &job.grad_c_n}) *state = at(*state, row * sequence.hidden_size);
    for (T** state : {&job.grad_h_0, &job.grad_c_0}) *state = at(*state, row * sequence.hidden_size);
    return job;
  }
};

// A lane's two rows of a tile, or null.
template <typename T>
struct Rows {
  const T* at[2];
  bool awaited[2];  // whether other blocks of this launch write it
};

template <typename T>
FOURFOLD_FN Slot read_slot(const T* from) {
  const uint4 bytes = load_words(from);
  return {{bytes.x, bytes.y, bytes.z, bytes.w}};
}

FOURFOLD_FN bool is_written(const Slot& slot) { return slot.word[3] != unwritten; }

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

// The number of tiles whose slots are loaded together, to wait for them once.
template <typename T, Rounding rounding, int chunks>
constexpr int tiles_at_once = 4 * chunks <= chunks_in_flight<T, rounding, chunks>   ? 4
                              : 2 * chunks <= chunks_in_flight<T, rounding, chunks> ? 2
                                                                                    : 1;

// Loads a lane's slots of its rows of the first `there` tiles, from position k of the depth on, and repeats the loads of
// those that other blocks have not written yet.
template <int tiles, int count, typename T>
FOURFOLD_FN void read_slots(Slot (&slots)[tiles][count][2], const Rows<T> (&rows)[tiles], int there, int k, int depth) {
#pragma unroll
  for (int tile = 0; tile < tiles; ++tile) {
    for (int n = 0; n < count; ++n) {
      for (int side = 0; side < 2; ++side) {
        const bool has_slot = rows[tile].at[side] != nullptr && k + n * chunk_depth<T> < depth;
        slots[tile][n][side] = {{0, 0, 0, has_slot ? unwritten : 0}};
      }
    }
  }
  while (true) {
#pragma unroll
    for (int tile = 0; tile < tiles; ++tile) {
      if (tile >= there) break;
      for (int n = 0; n < count; ++n) {
        for (int side = 0; side < 2; ++side) {
          Slot& slot = slots[tile][n][side];
          if (!is_written(slot)) slot = read_slot(rows[tile].at[side] + k + n * chunk_depth<T>);
        }
      }
    }
    bool waits = false;
#pragma unroll
    for (int tile = 0; tile < tiles; ++tile) {
      if (tile >= there) break;
      for (int side = 0; side < 2; ++side) {
        bool missing = false;
        for (int n = 0; n < count; ++n) missing |= !is_written(slots[tile][n][side]);
        waits |= missing && rows[tile].awaited[side];
      }
    }
    if (!waits) break;
    pause();
  }
  sync_group();
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

// Multiplies the warp's part of the block's rows by the same part of its columns, and stores the sums. slot_k: the
// position of the lane's first slot in the depth. rows_of(tile): the lane's rows of a tile.
template <typename T, Rounding rounding, int chunks, int columns, typename RowsOf>
FOURFOLD_FN void multiply_rows(float* sums, int row_tiles, int slot_k, int depth, const Slot (&weights)[chunks][columns],
                               const RowsOf& rows_of) {
  constexpr int most = chunks_in_flight<T, rounding, chunks>;
  constexpr int in_flight = chunks < most ? chunks : most;
  constexpr int tiles = tiles_at_once<T, rounding, chunks>;
  // Sums of a single column would wait for each other. And the tensor cores truncate sums towards zero: in unrounded
  // float32 this error would accumulate to more than that of the products, so the sums start from zero, and ordinary
  // additions, which round, combine them.
  constexpr int accumulators = columns == 1 ? 4 : 1;
  for (int first_tile = 0; first_tile < row_tiles; first_tile += tiles) {
    Rows<T> rows[tiles] = {};
    float sum[tiles][columns][4] = {};
#pragma unroll
    for (int tile = 0; tile < tiles; ++tile) {
      if (first_tile + tile < row_tiles) rows[tile] = rows_of(first_tile + tile);
    }
#pragma unroll
    for (int first = 0; first < chunks; first += in_flight) {
      Slot slots[tiles][in_flight][2];
      read_slots(slots, rows, row_tiles - first_tile, slot_k + first * chunk_depth<T>, depth);
#pragma unroll
      for (int tile = 0; tile < tiles; ++tile) {
        if (first_tile + tile >= row_tiles) break;
        float part[accumulators][columns][4] = {};
#pragma unroll
        for (int n = 0; n < in_flight && first + n < chunks; ++n) {
          for (int column = 0; column < columns; ++column) {
            multiply_tile<T, rounding>(part[n % accumulators][column], slots[tile][n][0], slots[tile][n][1],
                                       weights[first + n][column]);
          }
        }
        for (int column = 0; column < columns; ++column) {
          for (int n = 0; n < accumulators; ++n) {
            for (int k = 0; k < 4; ++k) sum[tile][column][k] += part[n][column][k];
          }
        }
      }
    }
#pragma unroll
    for (int tile = 0; tile < tiles; ++tile) {
      if (first_tile + tile < row_tiles) store_sums(sums, row_tiles * columns, first_tile + tile, sum[tile]);
    }
  }
}

FOURFOLD_FN float total_of(const float* sums, int tiles, int tile, int value) {
  float total = 0;
  for (int warp = 0; warp < warps; ++warp) total += sums[(warp * tiles + tile) * tile_values + value];
  return total;
}

constexpr int64_t sums_bytes(int row_tiles, int columns) {
  return int64_t(warps) * row_tiles * columns * tile_values * static_cast<int64_t>(sizeof(float));
}

// The sums of alternating steps: a warp may store those of the next step while others still read these. With memory
// for one step only, all wait for each other once more.
class Sums {
 public:
  FOURFOLD_FN Sums(const Sequence& sequence, int columns)
      : sums_(shared_memory<float>()),
        apart_(sequence.has_two_sums ? static_cast<int>(sums_bytes(sequence.row_tiles, columns) / sizeof(float)) : 0) {}

  FOURFOLD_FN float* of_step(int s) const { return sums_ + s % 2 * apart_; }
  FOURFOLD_FN void finish_step() const {
    if (apart_ == 0) __syncthreads();
  }

 private:
  float* sums_;
  int apart_;
};

// What a thread's elements of a step read besides the product; converted only when it is used, since a conversion would
// wait for the load.
template <typename Cell, typename T>
struct ForwardInputs {
  Values<T, Cell::gates> projection[values_per_thread];
  bool restarts[values_per_thread];

  FOURFOLD_FN void load(const PersistentForward<T>& job, const Part& part, const Step& step) {
    const int size = job.sequence.hidden_size;
#pragma unroll
    for (int n = 0; n < values_per_thread; ++n) {
      const Element e = Element::of_thread(part, n);
      if (!e.is_in(step)) continue;
      const T* gates = job.projection + (step.first + e.row) * Cell::gates * size + e.unit;
      for (int g = 0; g < Cell::gates; ++g) projection[n].v[g] = gates[g * size];
      restarts[n] = step.restarts(job.sequence, e.row);
    }
  }
};

template <typename Cell, typename T>
FOURFOLD_FN void finish_forward(const PersistentForward<T>& job, const Part& part, const Step& step,
                                const float* sums, const Values<float, Cell::gates>& bias, const ForwardInputs<Cell, T>& inputs,
                                State& state) {
  constexpr int gates = Cell::gates;
  const int size = job.sequence.hidden_size;
#pragma unroll
  for (int n = 0; n < values_per_thread; ++n) {
    if (has_none(part, step, n)) break;
    const Element e = Element::of_thread(part, n);
    const bool there = e.is_in(step);
    formulas::CellStep<float, Cell::kept> next{};
    if (there) {
      Values<float, gates> input;
      Values<float, gates> hidden;
      for (int g = 0; g < gates; ++g) {
        input.v[g] = static_cast<float>(inputs.projection[n].v[g]);
        hidden.v[g] = bias.v[g] + total_of(sums, job.sequence.row_tiles * gates, e.tile * gates + g, e.value);
      }
      next = Cell::forward(input, hidden, inputs.restarts[n] ? 0.0f : state.v[n]);
      state.v[n] = next.state;
    }
    const int64_t row = step.first + e.row;
    pass_on(job.output + row * size, e, next.h, there);
    if (!there || job.kept == nullptr) continue;
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
  const Sums sums(sequence, gates);
  const Part part = Part::of_block(sequence);

  Slot weights[chunks][gates] = {};
#pragma unroll
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const int k = slot_k + chunk * chunk_depth<T>;
    const int64_t unit = part.first_unit + lane / 4;
    for (int g = 0; g < gates && k < size; ++g) {
      weights[chunk][g] = gather_slot(job.weights + (g * size + unit) * job.leading_dim + k, 1);
    }
  }
  Values<float, gates> bias;
  for (int g = 0; g < gates; ++g) bias.v[g] = read_or_zero<float>(job.bias, g * size + Element::of_thread(part, 0).unit);
  State state;
  state.load(sequence, part, job.state_0);

  Step step = Step::at_end(sequence, sequence.reverse);
  Step before{};  // no rows: the first step has no previous one
  ForwardInputs<Cell, T> inputs;
  inputs.load(job, part, step);
  for (int s = 0; s < sequence.time; ++s) {
    multiply_rows<T, rounding>(sums.of_step(s), sequence.row_tiles, slot_k, size, weights, [&](int tile) {
      Rows<T> rows{};
      for (int side = 0; side < 2; ++side) {
        const int row = part.first_row + tile * row_tile + side * 8 + lane / 4;
        if (row >= step.active || step.restarts(sequence, row)) continue;
        rows.awaited[side] = row < before.active;
        rows.at[side] = rows.awaited[side] ? job.output + (before.first + row) * size : job.h_0 + int64_t(row) * size;
      }
      return rows;
    });
    __syncthreads();
    finish_forward(job, part, step, sums.of_step(s), bias, inputs, state);
    sums.finish_step();
    before = step;
    if (s + 1 < sequence.time) step = step.next(sequence, sequence.reverse);
    inputs.load(job, part, step);
  }
  state.store(sequence, part, job.c_n);
}

// What a thread's elements of a step read besides the gradient of h; converted only when it is used.
template <typename Cell, typename T>
struct BackwardInputs {
  Values<T, Cell::kept> kept[values_per_thread];
  T before[values_per_thread];
  T after[values_per_thread];
  T grad_output[values_per_thread];
  bool restarts[values_per_thread];

  // before_step: the previous step of the sequence.
  FOURFOLD_FN void load(const PersistentBackward<T>& job, const Part& part, const Step& step, const Step& before_step) {
    const int size = job.sequence.hidden_size;
#pragma unroll
    for (int n = 0; n < values_per_thread; ++n) {
      const Element e = Element::of_thread(part, n);
      if (!e.is_in(step)) continue;
      const int64_t row = step.first + e.row;
      for (int k = 0; k < Cell::kept; ++k) kept[n].v[k] = job.kept[(row * Cell::kept + k) * size + e.unit];
      const bool known = e.row < before_step.active;
      const T* states = known ? job.states : job.state_0;
      before[n] = read_or_zero<T>(states, (known ? before_step.first + e.row : e.row) * int64_t(size) + e.unit);
      after[n] = job.states[row * size + e.unit];
      grad_output[n] = read_or_zero<T>(job.grad_output, row * size + e.unit);
      restarts[n] = step.restarts(job.sequence, e.row);
    }
  }
};

template <typename Cell, typename T>
FOURFOLD_FN void gradients_of_gates(const PersistentBackward<T>& job, const Part& part, const Step& step,
                                    const BackwardInputs<Cell, T>& inputs, const State& grad_h, State& grad_state) {
  const int size = job.sequence.hidden_size;
#pragma unroll
  for (int n = 0; n < values_per_thread; ++n) {
    if (has_none(part, step, n)) break;
    const Element e = Element::of_thread(part, n);
    const bool there = e.is_in(step);
    Values<float, Cell::grads> gates{};
    if (there) {
      Values<float, Cell::kept> kept;
      for (int k = 0; k < Cell::kept; ++k) kept.v[k] = static_cast<float>(inputs.kept[n].v[k]);
      const float before = inputs.restarts[n] ? 0.0f : static_cast<float>(inputs.before[n]);
      const float grad = grad_h.v[n] + static_cast<float>(inputs.grad_output[n]);
      const auto result = Cell::backward(kept, before, static_cast<float>(inputs.after[n]), grad, grad_state.v[n]);
      grad_state.v[n] = inputs.restarts[n] ? 0.0f : result.state;
      gates = result.gates;
    }
    for (int g = 0; g < Cell::grads; ++g) {
      pass_on(job.grad_gates + ((step.first + e.row) * Cell::grads + g) * size, e, gates.v[g], there);
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
  const Sums sums(sequence, 1);
  const Part part = Part::of_block(sequence);

  Slot weights[chunks][1] = {};
#pragma unroll
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const int64_t k = slot_k + chunk * chunk_depth<T>;
    const int64_t unit = part.first_unit + lane / 4;
    if (k < depth) weights[chunk][0] = gather_slot(job.weights + k * job.leading_dim + unit, job.leading_dim);
  }
  State grad_h;
  State grad_state;
  grad_h.load(sequence, part, job.grad_h_n);
  grad_state.load(sequence, part, job.grad_c_n);

  const auto before_of = [&](int s, const Step& step) {
    return s + 1 < sequence.time ? step.next(sequence, !sequence.reverse) : Step{};
  };
  Step step = Step::at_end(sequence, !sequence.reverse);
  Step before = before_of(0, step);
  BackwardInputs<Cell, T> inputs;
  inputs.load(job, part, step, before);
  for (int s = 0; s < sequence.time; ++s) {
    gradients_of_gates(job, part, step, inputs, grad_h, grad_state);
    if (!job.need_states && s + 1 == sequence.time) return;
    const Step two_before = before_of(s + 1, before);
    inputs.load(job, part, before, two_before);
    multiply_rows<T, rounding>(sums.of_step(s), sequence.row_tiles, slot_k, depth, weights, [&](int tile) {
      Rows<T> rows{};
      for (int side = 0; side < 2; ++side) {
        const int row = part.first_row + tile * row_tile + side * 8 + lane / 4;
        if (row >= step.active) continue;
        rows.awaited[side] = true;
        // The last slots belong to the recurrent part.
        rows.at[side] = job.grad_gates + ((step.first + row) * Cell::grads + Cell::grads - Cell::gates) * size;
      }
      return rows;
    });
    __syncthreads();
#pragma unroll
    for (int n = 0; n < values_per_thread; ++n) {
      const Element e = Element::of_thread(part, n);
      if (!e.is_in(step)) continue;
      const float total = total_of(sums.of_step(s), sequence.row_tiles, e.tile, e.value);
      grad_h.v[n] = step.restarts(sequence, e.row) ? 0.0f : total;
    }
    sums.finish_step();
    step = before;
    before = two_before;
  }
  if (!Cell::has_c) {
#pragma unroll
    for (int n = 0; n < values_per_thread; ++n) grad_h.v[n] += grad_state.v[n];
  }
  grad_h.store(sequence, part, job.grad_h_0);
  grad_state.store(sequence, part, job.grad_c_0);
}

}  // namespace fourfold::gpu
