// The persistent kernels' iteration over a sequence: its steps and their rows, a thread's elements of a step, and the
// values that blocks pass to each other.
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
  int row_tiles;            // of a block
  bool reverse;
  bool has_two_sums;        // whether the shared memory holds the sums of two steps
  const bool* reset;        // (rows), whether to zero a row's state before its step; or null
  int64_t rows;             // in all steps, of all launches
  int first_row;            // of this launch's rows in each step
  int other_rows;           // of other launches in each step; with other launches, all rows have all steps
  int lengths[most_batch];  // of each row, longest first
};

// The units and rows of a block.
struct Part {
  int first_unit;
  int first_row;

  static FOURFOLD_FN Part of_block(const Sequence& sequence) {
    const int blocks = sequence.hidden_size / block_units;
    const int block = static_cast<int>(blockIdx.x);
    return {block % blocks * block_units, block / blocks * most_rows};
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

  static FOURFOLD_FN Element of_thread(const Part& part, int k) {
    const int at = static_cast<int>(threadIdx.x) + k * persistent_threads;
    return {part.first_row + at / block_units, part.first_unit + at % block_units, at / tile_values, at % tile_values};
  }

  FOURFOLD_FN bool is_in(const Step& step) const { return row < step.active; }
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
      v[n] = e.row < sequence.batch ? read_or_zero<float>(from, int64_t(e.row) * sequence.hidden_size + e.unit) : 0.0f;
    }
  }

  template <typename T>
  FOURFOLD_FN void store(const Sequence& sequence, const Part& part, T* to) const {
    if (to == nullptr) return;
#pragma unroll
    for (int n = 0; n < values_per_thread; ++n) {
      const Element e = Element::of_thread(part, n);
      if (e.row < sequence.batch) to[int64_t(e.row) * sequence.hidden_size + e.unit] = static_cast<T>(v[n]);
    }
  }
};

FOURFOLD_FN uint32_t bits_of(float value) { return __float_as_uint(value); }
FOURFOLD_FN uint32_t bits_of(Half value) { return value.x; }
FOURFOLD_FN uint32_t bits_of(BFloat16 value) { return value.x; }

// Stores a thread's value of a row for other blocks: neighbouring threads have the values of the same 16 bytes, which
// one of them stores. All threads of a group must call it; `there` is the same for neighbours.
template <typename T>
FOURFOLD_FN void pass_on(T* row, const Element& element, float value, bool there) {
  constexpr int per_word = sizeof(uint32_t) / sizeof(T);
  uint32_t word = bits_of(static_cast<T>(value));
  if constexpr (per_word == 2) word |= from_lane_across(word, 1) << 16;
  const uint4 words{word, from_lane_across(word, per_word), from_lane_across(word, 2 * per_word),
                    as_written(from_lane_across(word, 3 * per_word))};
  if (there && element.unit % (4 * per_word) == 0) store_words(row + element.unit, words);
}

}  // namespace fourfold::gpu
