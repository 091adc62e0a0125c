// Kernels that compute a whole sequence: their jobs, and their iteration over its steps and the rows of each. For the
// persistent kernels also a thread's elements of a step, and the values that blocks pass to each other.
#pragma once

#include "cell.cuh"

namespace fourfold::gpu {

constexpr int block_units = 8;
constexpr int warps = 8;  // of 32 lanes
constexpr int persistent_threads = warps * group_size;
constexpr int most_rows = 64;    // of a block
constexpr int most_batch = 512;  // of a launch
constexpr int row_tile = 16;
constexpr int tile_values = row_tile * block_units;
constexpr int rows_at_once = persistent_threads / block_units;  // to which all threads of a block apply the cell
constexpr int values_per_thread = most_rows / rows_at_once;

struct Sequence {
  int time;
  int batch;  // of this launch
  int hidden_size;
  int padded_size;          // the next multiple of block_units
  int row_tiles;            // of a block
  bool reverse;
  bool has_two_sums;        // whether the shared memory holds the sums of two steps
  bool is_packed;           // whether rows have different lengths
  const bool* reset;        // (rows), whether to zero a row's state before its step; or null
  int64_t rows;             // in all steps, of all launches
  int first_row;            // of this launch's rows in each step
  int other_rows;           // of other launches in each step; with other launches, all rows have all steps
  int lengths[most_batch];  // of each row, longest first
};

// The job of a kernel for a whole sequence.
template <typename T>
struct SequenceForward {
  Sequence sequence;
  const T* weights;  // (gates * hidden_size, hidden_size)
  int64_t leading_dim;
  const T* bias;        // (gates * hidden_size) of the recurrent part, or null
  const T* projection;  // (rows, gates * hidden_size)
  T* kept;              // (rows, kept * hidden_size), or null
  T* cells;             // (rows, hidden_size), or null
  T* output;            // (rows, hidden_size)
  T* passed_on;         // persistent kernels: (rows, padded_size), filled with unwritten words; may be output
  const T* h_0;         // (batch, hidden_size), like the next ones; for persistent kernels (batch, padded_size), aligned to 16 bytes
  const T* state_0;     // c_0, or h_0 if the cell has no c
  T* c_n;               // or null

  // The same for the rows from there on.
  SequenceForward from_row(int64_t row) const {
    SequenceForward job = *this;
    job.h_0 = at(h_0, row * sequence.padded_size);
    job.state_0 = at(state_0, row * sequence.hidden_size);
    job.c_n = at(c_n, row * sequence.hidden_size);
    return job;
  }
};

template <typename T>
struct SequenceBackward {
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
  T* passed_on;          // persistent kernels: (rows, grads * padded_size), as above; may be grad_gates
  bool need_states;      // whether to write the next two
  T* grad_h_0;
  T* grad_c_0;  // null if the cell has no c

  SequenceBackward from_row(int64_t row) const {
    SequenceBackward job = *this;
    for (const T** state : {&job.state_0, &job.grad_h_n, &job.grad_c_n}) *state = at(*state, row * sequence.hidden_size);
    for (T** state : {&job.grad_h_0, &job.grad_c_0}) *state = at(*state, row * sequence.hidden_size);
    return job;
  }
};

// The units and rows of a block. is_padded: whether the last units may be padding; kernels of more units don't support
// it, since it would take registers that they don't have.
struct Part {
  int first_unit;
  int first_row;
  int hidden_size;
  bool is_padded;

  static FOURFOLD_FN Part of_block(const Sequence& sequence, bool is_padded) {
    const int blocks = sequence.padded_size / block_units;
    const int block = static_cast<int>(blockIdx.x);
    return {block % blocks * block_units, block / blocks * most_rows, sequence.hidden_size, is_padded};
  }
};

// The current step of the iteration: step t has `active` rows from `first` on.
struct Step {
  int t;
  int active;
  int64_t first;

  // The first or last step of the sequence.
  static FOURFOLD_FN Step at_end(const Sequence& sequence, bool last) {
    Step step{last ? sequence.time - 1 : 0, sequence.batch, sequence.first_row};
    if (!last) return step;
    while (step.active > 0 && sequence.lengths[step.active - 1] < sequence.time) --step.active;
    step.first += sequence.rows - step.active - sequence.other_rows;
    return step;
  }

  FOURFOLD_FN Step later(const Sequence& sequence) const {
    Step next{t + 1, active, first + active + sequence.other_rows};
    while (next.active > 0 && sequence.lengths[next.active - 1] <= next.t) --next.active;
    return next;
  }

  FOURFOLD_FN Step earlier(const Sequence& sequence) const {
    Step next{t - 1, active, 0};
    while (next.active < sequence.batch && sequence.lengths[next.active] > next.t) ++next.active;
    next.first = first - next.active - sequence.other_rows;
    return next;
  }

  FOURFOLD_FN Step next(const Sequence& sequence, bool backwards) const {
    return backwards ? earlier(sequence) : later(sequence);
  }

  FOURFOLD_FN bool restarts(const Sequence& sequence, int row) const {
    return sequence.reset != nullptr && row < active && sequence.reset[first + row];
  }
};

// One of a thread's elements of a step; `k` counts them. All have the same unit.
struct Element {
  int row;    // of the launch
  int unit;   // of the layer
  int tile;   // of the block's rows
  int value;  // within the tile
  bool has_unit;  // or is padding

  static FOURFOLD_FN Element of_thread(const Part& part, int k) {
    const int at = static_cast<int>(threadIdx.x) + k * persistent_threads;
    return {part.first_row + at / block_units, part.first_unit + at % block_units, at / tile_values, at % tile_values,
            !part.is_padded || part.first_unit + at % block_units < part.hidden_size};
  }

  FOURFOLD_FN bool is_in(const Step& step) const { return has_unit && row < step.active; }
  FOURFOLD_FN bool is_passed_on(const Step& step) const { return row < step.active; }
};

// Whether no thread has a k-th element: the same for all threads of a block.
FOURFOLD_FN bool has_none(const Part& part, const Step& step, int k) {
  return part.first_row + k * rows_at_once >= step.active;
}

// A thread's elements of a state (batch, hidden_size), in registers from step to step.
struct State {
  float v[values_per_thread];

  // Null for zeros.
  template <typename T>
  FOURFOLD_FN void load(const Sequence& sequence, const Part& part, const T* from) {
#pragma unroll
    for (int n = 0; n < values_per_thread; ++n) {
      const Element e = Element::of_thread(part, n);
      v[n] = e.has_unit && e.row < sequence.batch ? read_or_zero<float>(from, int64_t(e.row) * sequence.hidden_size + e.unit) : 0.0f;
    }
  }

  template <typename T>
  FOURFOLD_FN void store(const Sequence& sequence, const Part& part, T* to) const {
    if (to == nullptr) return;
#pragma unroll
    for (int n = 0; n < values_per_thread; ++n) {
      const Element e = Element::of_thread(part, n);
      if (e.has_unit && e.row < sequence.batch) to[int64_t(e.row) * sequence.hidden_size + e.unit] = static_cast<T>(v[n]);
    }
  }
};

FOURFOLD_FN uint32_t bits_of(float value) { return __float_as_uint(value); }
FOURFOLD_FN uint32_t bits_of(Half value) { return value.x; }
FOURFOLD_FN uint32_t bits_of(BFloat16 value) { return value.x; }

// Stores a thread's value of a row for other blocks: neighbouring threads have the values of the same 16 bytes, which
// one of them stores. All threads of a group must call it. Padding passes on zeros.
template <typename T>
FOURFOLD_FN void pass_on(T* row, const Element& element, float value, const Step& step) {
  constexpr int per_word = sizeof(uint32_t) / sizeof(T);
  uint32_t word = bits_of(static_cast<T>(value));
  if constexpr (per_word == 2) word |= from_lane_across(word, 1) << 16;
  const uint4 words{word, from_lane_across(word, per_word), from_lane_across(word, 2 * per_word),
                    as_written(from_lane_across(word, 3 * per_word))};
  if (element.is_passed_on(step) && element.unit % (4 * per_word) == 0) store_words(row + element.unit, words);
}

}  // namespace fourfold::gpu
