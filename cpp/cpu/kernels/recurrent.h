// What the forward and the backward of a recurrent layer share: how its work is cut up among threads, and where the
// rows of a step and of the step before it lie.
//
// Threads own either rows of the batch, which they run through all steps without waiting for each other, or hidden
// units of all rows, whose weights then stay in their caches; in the second case every step ends with a barrier.
#pragma once

#include "cpu/kernels/cells.h"
#include "cpu/kernels/panels.h"
#include "cpu/memory.h"
#include "cpu/team.h"
#include "ops/recurrent_job.h"

namespace fourfold::cpu::FOURFOLD_CPU_LEVEL {

// Null stays null: that is how a job leaves a tensor out.
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

// How a layer's work is shared out. Blocks are vectors of hidden units.
struct Plan {
  int64_t shares;
  bool by_rows;
  int64_t chunk_steps;  // steps whose input projection, or gate gradients, are held at once
};

// What a thread works on: rows [row_begin, row_end) of the batch, blocks [block_begin, block_end) of hidden units.
struct Part {
  int64_t row_begin;
  int64_t row_end;
  int64_t block_begin;
  int64_t block_end;

  int64_t rows() const { return row_end - row_begin; }
  int64_t blocks() const { return block_end - block_begin; }
};

// How many steps' rows of so many bytes have room together.
inline int64_t steps_within(const RecurrentLayer& layer, int64_t room, int64_t row_bytes) {
  const int64_t steps = room / (greatest(layer.batch, 1) * greatest(row_bytes, 1));
  return greatest(1, least(steps, layer.time));
}

constexpr int64_t held_bytes = 192 * 1024;  // of a thread's rows of some steps, beside its weights

// bytes: of the weights that each step reads; chunk_bytes: of those that each chunk reads. row_bytes: of what is held of a
// row of a step.
inline Plan plan_of(
    const RecurrentLayer& layer, int64_t blocks, int64_t bytes, int64_t chunk_bytes, int64_t row_bytes, double work) {
  constexpr double enough = 1 << 25;               // multiply-adds that are worth another thread: some 100 µs
  constexpr int64_t near = 512 * 1024;             // of weights, which every thread then has in its own cache
  constexpr int64_t far = 1024 * 1024;             // of held_bytes where a chunk's weights come from further away each time
  const int64_t threads = work < 2 * enough ? 1 : usable_threads();
  Plan plan{least(threads, static_cast<int64_t>(work / enough) + 1), false, 1};
  if (threads > 1) {
    plan.by_rows = bytes <= near && layer.batch >= 4 * plan.shares;
    if (!plan.by_rows) plan.shares = least(plan.shares, blocks);
  }
  const int64_t shares = greatest(plan.shares, 1);
  const int64_t room = chunk_bytes > near * shares ? far : held_bytes;
  plan.chunk_steps = steps_within(layer, room * shares, row_bytes);
  return plan;
}

// Whether a call has so few rows that to read the weights takes most of its time, packed or not.
inline bool few_rows(const RecurrentLayer& layer) { return first_row(layer, layer.time) <= 64; }

// Whether such a call reads the weights where torch keeps them. Packing moves their bytes twice, and then saves each row
// some of its time: `rows` is for how many that is even while the weights lie in a core's own cache, measured by type and
// direction. From further away moving them costs four times as much, and each row's multiply-adds no more.
template <typename E>
bool in_place(const RecurrentLayer& layer, int64_t gates, int64_t rows) {
  const int64_t values = gates * layer.hidden_size * (layer.input_size + layer.hidden_size);
  const int64_t bytes = values * static_cast<int64_t>(sizeof(Memory<E>));
  return few_rows(layer) && first_row(layer, layer.time) <= (bytes > own_cache_bytes() ? 4 : 1) * rows;
}

// By hidden units, so that each thread reads its own part of the weights. What counts is to read them, which takes as
// long as two rows' multiply-adds: `step` of them are worth a barrier, `call` of them waking a thread up.
template <typename Cell>
Plan plan_in_place(const RecurrentLayer& layer, int64_t blocks) {
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

inline Part part_of(const Plan& plan, const RecurrentLayer& layer, int64_t blocks, int64_t begin, int64_t end) {
  if (plan.by_rows) return {layer.batch * begin / plan.shares, layer.batch * end / plan.shares, 0, blocks};
  return {0, layer.batch, blocks * begin / plan.shares, blocks * end / plan.shares};
}

// The rows of a part that take part in step t; they come first.
inline int64_t rows_of_part(const RecurrentLayer& layer, const Part& part, int64_t t) {
  const int64_t rows = least(part.row_end, active_rows(layer, t)) - part.row_begin;
  return greatest(rows, 0);
}

// The step that came before step t in the layer's own direction, or -1.
inline int64_t step_before(const RecurrentLayer& layer, int64_t t) {
  const int64_t before = layer.reverse ? t + 1 : t - 1;
  return before < layer.time ? before : -1;
}

// Row b's state before step t: that of the step before, or the initial one, or zeros where it was reset.
template <typename S>
const S* row_before(
    const RecurrentLayer& layer, int64_t t, int64_t b, const S* states, const S* initial, const S* zeros) {
  const bool* resets = resets_of(layer);
  if (resets != nullptr && resets[first_row(layer, t) + b]) return zeros;
  const int64_t before = step_before(layer, t);
  if (before < 0 || b >= active_rows(layer, before)) return initial + b * layer.hidden_size;
  return states + (first_row(layer, before) + b) * layer.hidden_size;
}

// Copies, and converts on the way; null is zeros.
template <typename To, typename From>
void copy_values(To* to, const From* from, int64_t count) {
  constexpr int64_t step = decltype(load_lanes(from, count))::size();
  for (int64_t k = 0; k < count; k += step) {
    const int64_t n = least(step, count - k);
    store_lanes(to + k, load_or_zero(from, k, n), n);
  }
}

}  // namespace fourfold::cpu::FOURFOLD_CPU_LEVEL
