// The persistent kernels' iteration over a sequence: its steps and their rows, synchronisation between blocks, and a
// thread's elements of a step.
#pragma once

#include "cell.cuh"

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
  const bool* reset;        // (rows), whether to zero a row's state before its step; or null
  int64_t rows;             // in all steps
  int lengths[most_rows];   // of each row of the batch, longest first
  uint32_t* flags;          // for each block, the number of finished steps; zero at launch
};

// The current step of the iteration: step t has `active` rows from `first` on.
struct Step {
  int t;
  int active;
  int64_t first;

  // The first or last step of the sequence.
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

  FOURFOLD_FN bool restarts(const Sequence& sequence, int row) const {
    return sequence.reset != nullptr && row < active && sequence.reset[first + row];
  }

  // The previous state of this step's rows, from step `before`.
  template <typename T>
  FOURFOLD_FN Before<T> state_before(const Sequence& sequence, const Step& before, const T* states,
                                     const T* initial) const {
    return {states + before.first * sequence.hidden_size, initial, before.active,
            sequence.reset == nullptr ? nullptr : sequence.reset + first};
  }
};

// Waits until the blocks that own units [begin, end) have finished `steps` steps. All threads must call it, even with
// nothing to wait for: a wavefront of 64 has two of the kernel's warps, which must not diverge.
FOURFOLD_FN void wait_for(const Sequence& sequence, int begin, int end, uint32_t steps) {
  const int lane = static_cast<int>(threadIdx.x) % group_size;
  for (int block = begin / block_units + lane; block * block_units < end; block += group_size) {
    while (read_flag(sequence.flags + block) < steps) pause();
  }
  sync_group();
}

// Sets the block's flag after all its threads have stored their part of the step.
FOURFOLD_FN void finish_step(const Sequence& sequence, uint32_t steps) {
  __syncthreads();
  if (threadIdx.x == 0) raise_flag(sequence.flags + blockIdx.x, steps);
}

// One of a thread's elements of a step; `k` counts them. All have the same unit.
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

// A thread's elements of a state (batch, hidden_size), in registers from step to step.
struct State {
  float v[values_per_thread];

  // Null for zeros.
  template <typename T>
  FOURFOLD_FN void load(const Sequence& sequence, const T* from) {
#pragma unroll
    for (int n = 0; n < values_per_thread; ++n) {
      const Element e = Element::of_thread(n);
      const bool there = e.row < sequence.batch && e.unit < sequence.hidden_size;
      v[n] = there ? read_or_zero<float>(from, int64_t(e.row) * sequence.hidden_size + e.unit) : 0.0f;
    }
  }

  template <typename T>
  FOURFOLD_FN void store(const Sequence& sequence, T* to) const {
    if (to == nullptr) return;
#pragma unroll
    for (int n = 0; n < values_per_thread; ++n) {
      const Element e = Element::of_thread(n);
      if (e.row < sequence.batch && e.unit < sequence.hidden_size) {
        to[int64_t(e.row) * sequence.hidden_size + e.unit] = static_cast<T>(v[n]);
      }
    }
  }
};

}  // namespace fourfold::gpu
