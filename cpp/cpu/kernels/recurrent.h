// Shared by the forward and the backward of a recurrent layer: how threads split the work, and the addresses of the
// rows of a step and of the previous step.
//
// Threads own either rows of the batch, which they run through all steps without synchronisation, or hidden units of
// all rows, whose weights then stay in their caches; in the second case every step ends with a barrier.
#pragma once

#include "cpu/kernels/cells.h"
#include "cpu/kernels/panels.h"
#include "cpu/memory.h"
#include "cpu/team.h"
#include "ops/recurrent_job.h"

namespace fourfold::cpu::FOURFOLD_CPU_LEVEL {

// Null stays null: jobs have null for absent tensors.
template <typename T>
T* at_row(T* data, int64_t row, int64_t size) {
  return data == nullptr ? nullptr : data + row * size;
}

template <typename M>
auto load_or_zero(const M* from, int64_t at, int64_t count) {
  return from == nullptr ? decltype(load_lanes(from, count))(0) : load_lanes(from + at, count);
}

inline int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
constexpr int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
constexpr int64_t greatest(int64_t a, int64_t b) { return a > b ? a : b; }

// How threads split a layer's work. Blocks are vectors of hidden units.
struct Partition {
  int64_t shares;
  bool by_rows;
  int64_t chunk_steps;  // the number of steps whose input projection, or gate gradients, are in memory at once
};

// A thread's part: rows [row_begin, row_end) of the batch, blocks [block_begin, block_end) of hidden units.
struct Part {
  int64_t row_begin;
  int64_t row_end;
  int64_t block_begin;
  int64_t block_end;

  int64_t rows() const { return row_end - row_begin; }
  int64_t blocks() const { return block_end - block_begin; }
};

// The number of steps whose rows, of row_bytes each, fit in `room` bytes.
inline int64_t steps_within(const RecurrentLayer& layer, int64_t room, int64_t row_bytes) {
  const int64_t steps = room / (greatest(layer.batch, 1) * greatest(row_bytes, 1));
  return greatest(1, least(steps, layer.time));
}

constexpr int64_t held_bytes = 192 * 1024;  // for a thread's rows of a chunk, besides its weights

// bytes: the size of the weights that each step reads; chunk_bytes: of those that each chunk reads; row_bytes: of the
// data that is held for a row of a step.
inline Partition partition_of(
    const RecurrentLayer& layer, int64_t blocks, int64_t bytes, int64_t chunk_bytes, int64_t row_bytes, double work) {
  constexpr double enough = 1 << 25;               // multiply-adds that justify another thread: about 100 µs
  constexpr int64_t near = 512 * 1024;             // bytes of weights that fit each thread's own cache
  constexpr int64_t far = 1024 * 1024;             // replaces held_bytes if a chunk's weights don't fit that cache
  const int64_t threads = work < 2 * enough ? 1 : usable_threads();
  Partition partition{least(threads, static_cast<int64_t>(work / enough) + 1), false, 1};
  if (threads > 1) {
    partition.by_rows = bytes <= near && layer.batch >= 4 * partition.shares;
    if (!partition.by_rows) partition.shares = least(partition.shares, blocks);
  }
  const int64_t shares = greatest(partition.shares, 1);
  const int64_t room = chunk_bytes > near * shares ? far : held_bytes;
  partition.chunk_steps = steps_within(layer, room * shares, row_bytes);
  return partition;
}

// Whether a call has so few rows that reading the weights takes most of its time, packed or not.
inline bool few_rows(const RecurrentLayer& layer) { return first_row(layer, layer.time) <= 64; }

// Whether such a call reads the unpacked weights. Packing moves their bytes twice, and then saves time for each row:
// `rows` is the break-even number of rows if the weights fit a core's own cache, measured for each type and direction.
// Outside that cache moving them costs four times as much, but the multiply-adds of a row don't.
template <typename E>
bool in_place(const RecurrentLayer& layer, int64_t gates, int64_t rows) {
  const int64_t values = gates * layer.hidden_size * (layer.input_size + layer.hidden_size);
  const int64_t bytes = values * static_cast<int64_t>(sizeof(Memory<E>));
  return few_rows(layer) && first_row(layer, layer.time) <= (bytes > own_cache_bytes() ? 4 : 1) * rows;
}

// Splits by hidden units, so that each thread reads its own part of the weights. The time is that of reading them,
// which equals the multiply-adds of two rows: `step` of them justify a barrier, `call` of them justify waking a thread.
template <typename Cell>
Partition partition_in_place(const RecurrentLayer& layer, int64_t blocks) {
  constexpr double step = 1 << 16;
  constexpr double call = 1 << 19;
  const auto products = [&](int64_t rows, int64_t depth) {
    return static_cast<double>(greatest(rows, 2)) * static_cast<double>(Cell::gates * layer.hidden_size * depth);
  };
  const double each = products(layer.batch, layer.hidden_size);
  const double all = products(first_row(layer, layer.time), layer.input_size) + static_cast<double>(layer.time) * each;
  int64_t shares = least(blocks, static_cast<int64_t>(each / step < all / call ? each / step : all / call));
  if (shares > 1) shares = least(shares, usable_threads());
  return {greatest(shares, 1), false, greatest(layer.time, 1)};
}

inline Part part_of(const Partition& partition, const RecurrentLayer& layer, int64_t blocks, int64_t begin, int64_t end) {
  if (partition.by_rows) return {layer.batch * begin / partition.shares, layer.batch * end / partition.shares, 0, blocks};
  return {0, layer.batch, blocks * begin / partition.shares, blocks * end / partition.shares};
}

// The number of a part's rows that are active in step t; these come first.
inline int64_t rows_of_part(const RecurrentLayer& layer, const Part& part, int64_t t) {
  const int64_t rows = least(part.row_end, active_rows(layer, t)) - part.row_begin;
  return greatest(rows, 0);
}

// The step before step t in the layer's direction, or -1.
inline int64_t step_before(const RecurrentLayer& layer, int64_t t) {
  const int64_t before = layer.reverse ? t + 1 : t - 1;
  return before < layer.time ? before : -1;
}

// Row b's state before step t: that of the previous step, the initial one, or zeros after a reset.
template <typename S>
const S* row_before(
    const RecurrentLayer& layer, int64_t t, int64_t b, const S* states, const S* initial, const S* zeros) {
  const bool* resets = resets_of(layer);
  if (resets != nullptr && resets[first_row(layer, t) + b]) return zeros;
  const int64_t before = step_before(layer, t);
  if (before < 0 || b >= active_rows(layer, before)) return initial + b * layer.hidden_size;
  return states + (first_row(layer, before) + b) * layer.hidden_size;
}

// Copies with conversion; from null, zeros.
template <typename To, typename From>
void copy_values(To* to, const From* from, int64_t count) {
  constexpr int64_t step = decltype(load_lanes(from, count))::size();
  for (int64_t k = 0; k < count; k += step) {
    const int64_t n = least(step, count - k);
    store_lanes(to + k, load_or_zero(from, k, n), n);
  }
}

}  // namespace fourfold::cpu::FOURFOLD_CPU_LEVEL
