// A whole sequence in one launch: each block owns 8 hidden units, and keeps their part of the recurrent weights in
// registers from the first step to the last.
//
// The 8 warps of a block split the depth of the product: each multiplies its part of the rows by its part of the
// weights; the sums are combined in shared memory, where one thread per row and unit applies the cell. Blocks pass
// values (h, or the gradient of the gates) to each other through the tensors that the layer returns or saves anyway, or
// through padded copies if the hidden size isn't a multiple of 8, as device.cuh explains. Each step has its own rows
// there, so nothing is overwritten while other blocks may read it. A step's other inputs are loaded before it waits.
#pragma once

#include <algorithm>
#include <initializer_list>

#include "launch.cuh"
#include "ops/recurrent_job.h"
#include "row_product.cuh"

namespace fourfold::gpu {

// The largest hidden size that may be padded, and whether the kernels of a depth support it, by the depth of each of
// their warps for one gate: those of more units don't have the registers.
constexpr int most_padded_size = 512;
constexpr bool may_be_padded(int depth_of_warp) { return depth_of_warp * warps <= most_padded_size; }

// What a thread's elements of a step read besides the product; converted only when it is used, since a conversion would
// wait for the load.
template <typename Cell, typename T>
struct ForwardInputs {
  Values<T, Cell::gates> projection[values_per_thread];
  bool restarts[values_per_thread];

  FOURFOLD_FN void load(const SequenceForward<T>& job, const Part& part, const Step& step) {
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
FOURFOLD_FN void finish_forward(const SequenceForward<T>& job, const Part& part, const Step& step,
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
    pass_on(part.is_padded ? job.passed_on + row * job.sequence.padded_size : job.output + row * size, e, next.h, step);
    if (!there) continue;
    if (part.is_padded && job.passed_on != job.output) job.output[row * size + e.unit] = static_cast<T>(next.h);
    if (job.kept == nullptr) continue;
    if (Cell::has_c) job.cells[row * size + e.unit] = static_cast<T>(next.state);
    for (int k = 0; k < Cell::kept; ++k) {
      job.kept[(row * Cell::kept + k) * size + e.unit] = static_cast<T>(next.kept.v[k]);
    }
  }
}

template <typename Cell, typename T, Rounding rounding, int chunks>
__global__ void __launch_bounds__(persistent_threads, 1) persistent_forward(SequenceForward<T> job) {
  if constexpr (!tile_products_here) return;
  constexpr int gates = Cell::gates;
  const Sequence& sequence = job.sequence;
  const int size = sequence.hidden_size;
  constexpr bool is_padded = may_be_padded(chunks * chunk_depth<T>);
  const int padded = is_padded ? sequence.padded_size : size;
  const int lane = static_cast<int>(threadIdx.x) % group_size;
  const int first_k = static_cast<int>(threadIdx.x) / group_size * chunks * chunk_depth<T>;
  const int slot_k = first_k + lane % 4 * slot_size<T>;
  const Sums sums(sequence, gates);
  const Part part = Part::of_block(sequence, is_padded);

  Slot weights[chunks][gates] = {};
#pragma unroll
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const int k = slot_k + chunk * chunk_depth<T>;
    const int64_t unit = part.first_unit + lane / 4;
    for (int g = 0; g < gates && k < size && (!is_padded || unit < size); ++g) {
      weights[chunk][g] = gather_slot(job.weights + (g * size + unit) * job.leading_dim + k, 1, is_padded ? size - k : slot_size<T>);
    }
  }
  Values<float, gates> bias{};
  const Element first = Element::of_thread(part, 0);
  for (int g = 0; g < gates && first.has_unit; ++g) bias.v[g] = read_or_zero<float>(job.bias, g * size + first.unit);
  const T* const passed_on = is_padded ? job.passed_on : job.output;
  State state;
  state.load(sequence, part, job.state_0);

  Step step = Step::at_end(sequence, sequence.reverse);
  Step before{};  // no rows: the first step has no previous one
  ForwardInputs<Cell, T> inputs;
  inputs.load(job, part, step);
  for (int s = 0; s < sequence.time; ++s) {
    multiply_rows<T, rounding>(sums.of_step(s), sequence.row_tiles, slot_k, padded, weights, [&](int tile) {
      Rows<T> rows{};
      for (int side = 0; side < 2; ++side) {
        const int row = part.first_row + tile * row_tile + side * 8 + lane / 4;
        if (row >= step.active || step.restarts(sequence, row)) continue;
        rows.awaited[side] = row < before.active;
        rows.at[side] = rows.awaited[side] ? passed_on + (before.first + row) * padded : job.h_0 + int64_t(row) * padded;
      }
      return rows;
    });
    __syncthreads();
    finish_forward(job, part, step, sums.of_step(s), bias, inputs, state);
    sums.finish_step();
    if (s + 1 == sequence.time) break;
    before = step;
    step = step.next(sequence, sequence.reverse);
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
  FOURFOLD_FN void load(const SequenceBackward<T>& job, const Part& part, const Step& step, const Step& before_step) {
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
FOURFOLD_FN void gradients_of_gates(const SequenceBackward<T>& job, const Part& part, const Step& step,
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
      const int64_t row = (step.first + e.row) * Cell::grads + g;
      pass_on(part.is_padded ? job.passed_on + row * job.sequence.padded_size : job.grad_gates + row * size, e, gates.v[g], step);
      if (part.is_padded && there && job.passed_on != job.grad_gates) job.grad_gates[row * size + e.unit] = static_cast<T>(gates.v[g]);
    }
  }
}

template <typename Cell, typename T, Rounding rounding, int chunks>
__global__ void __launch_bounds__(persistent_threads, 1) persistent_backward(SequenceBackward<T> job) {
  if constexpr (!tile_products_here) return;
  const Sequence& sequence = job.sequence;
  const int size = sequence.hidden_size;
  constexpr bool is_padded = may_be_padded(chunks * chunk_depth<T> / Cell::gates);
  const int padded = is_padded ? sequence.padded_size : size;
  const int depth = Cell::gates * padded;
  const int lane = static_cast<int>(threadIdx.x) % group_size;
  const int first_k = static_cast<int>(threadIdx.x) / group_size * chunks * chunk_depth<T>;
  const int slot_k = first_k + lane % 4 * slot_size<T>;
  const Sums sums(sequence, 1);
  const Part part = Part::of_block(sequence, is_padded);

  Slot weights[chunks][1] = {};
#pragma unroll
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const int64_t k = slot_k + chunk * chunk_depth<T>;
    const int64_t unit = part.first_unit + lane / 4;
    if (k >= depth || (is_padded && unit >= size)) continue;
    const int64_t row = is_padded ? k / padded * size + k % padded : k;  // of the weights
    const int count = is_padded ? size - static_cast<int>(k % padded) : slot_size<T>;
    weights[chunk][0] = gather_slot(job.weights + row * job.leading_dim + unit, job.leading_dim, count);
  }
  const T* const passed_on = is_padded ? job.passed_on : job.grad_gates;
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
        rows.at[side] = passed_on + ((step.first + row) * Cell::grads + Cell::grads - Cell::gates) * padded;
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

// The launches with which the rows of a layer that don't fit the device at once are computed, some after the others.
// On an H100 two launches of LSTMs of 512 units take half the time of a launch per step, three of 1024 units as long.
constexpr int64_t most_launches = 2;

// Cooperative launches of all rows, or false. bytes: of the memory through which blocks pass values to each other.
template <typename Job>
bool launch_persistent(const RecurrentLayer& layer, void (*kernel)(Job), Job job, int columns, int64_t bytes) {
  const Place place = layer.place;
  const int64_t blocks = job.sequence.padded_size / block_units;  // for each most_rows rows
  const int64_t parts = (layer.batch + most_rows - 1) / most_rows;
  Grid grid{0, persistent_threads};
  // The number of these parts that one launch computes.
  const auto parts_at_once = [&](int64_t shared_bytes) {
    grid.shared_bytes = shared_bytes;
    return std::min<int64_t>(blocks_at_once(place, grid, kernel) / blocks, most_batch / most_rows);
  };
  const int64_t sums = sums_bytes(job.sequence.row_tiles, columns);
  const int64_t with_two = parts_at_once(2 * sums);
  int64_t at_once = with_two;
  job.sequence.has_two_sums = true;
  if (parts > with_two) {  // with the sums of one step a device may hold more blocks
    const int64_t with_one = parts_at_once(sums);
    // Later launches don't know where a step begins if earlier rows can end before it.
    if (parts > with_one * (layer.offsets == nullptr ? most_launches : 1)) return false;
    const auto launches = [&](int64_t each) { return (parts + each - 1) / each; };
    job.sequence.has_two_sums = with_two > 0 && launches(with_two) == launches(with_one);
    if (job.sequence.has_two_sums) {
      grid.shared_bytes = 2 * sums;
    } else {
      at_once = with_one;
    }
  }
  fill(place, job.passed_on, unwritten_byte, static_cast<size_t>(bytes));
  for (int64_t row = 0; row < layer.batch; row += at_once * most_rows) {
    const int64_t rows = std::min(layer.batch - row, at_once * most_rows);
    Job part = job.from_row(row);
    part.sequence.batch = static_cast<int>(rows);
    part.sequence.first_row = static_cast<int>(row);
    part.sequence.other_rows = static_cast<int>(layer.batch - rows);
    grid.blocks = (rows + most_rows - 1) / most_rows * blocks;
    launch_at_once(place, grid, kernel, part);
  }
  return true;
}

}  // namespace fourfold::gpu
