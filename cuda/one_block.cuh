// A whole sequence of up to 4 rows in one block, which holds all recurrent weights in its registers: for layers of at
// most 96 units, or 80 of an LSTM, on any GPU. Blocks don't depend on each other.
//
// Four neighbouring threads compute a unit. Each multiplies a quarter of the depth, for all gates of all rows; then they
// exchange their sums, so that each has the gates of one row and applies the cell. The values that all threads
// read (h, or the gradients of the gates) are in shared memory, of alternating steps, so that a step has one barrier. A
// step's other inputs are loaded a step ahead.
#pragma once

#include "launch.cuh"
#include "ops/recurrent_job.h"
#include "sequence.cuh"

namespace fourfold::gpu {

constexpr int threads_of_unit = 4;
constexpr int rows_of_block = threads_of_unit;  // at most
constexpr int64_t fewest_block_steps = 8;       // of more blocks than the device runs at once; not measured
constexpr int values_at_once = 4;               // that a thread reads from shared memory
constexpr int block_chunk = threads_of_unit * values_at_once;
// The most chunks of the depth for which a thread's registers suffice on every GPU.
constexpr int most_block_chunks(int gates) { return gates > 3 ? 5 : 6; }
constexpr int most_block_size(int gates) { return most_block_chunks(gates) * block_chunk; }

template <int chunks>
constexpr int block_threads = threads_of_unit * chunks * block_chunk;

// Step::at_end and Step::next, which without packed rows support any batch.
FOURFOLD_FN Step end_of(const Sequence& sequence, bool last) {
  if (sequence.is_packed) return Step::at_end(sequence, last);
  return {last ? sequence.time - 1 : 0, sequence.batch, last ? sequence.rows - sequence.batch : 0};
}

FOURFOLD_FN Step step_after(const Sequence& sequence, const Step& step, bool backwards) {
  if (sequence.is_packed) return step.next(sequence, backwards);
  const int by = backwards ? -1 : 1;
  return {step.t + by, step.active, step.first + by * int64_t(step.active)};
}

// The unit and the row of a thread.
struct Owner {
  int part;  // the quarter of the depth, and the row within the block
  int unit;
  int row;  // of the launch
  bool is_there;

  FOURFOLD_FN Owner(const Sequence& sequence, int rows)
      : part(static_cast<int>(threadIdx.x) % threads_of_unit),
        unit(static_cast<int>(threadIdx.x) / threads_of_unit),
        row(static_cast<int>(blockIdx.x) * rows + part),
        is_there(part < rows && row < sequence.batch && unit < sequence.hidden_size) {}

  FOURFOLD_FN bool is_in(const Step& step) const { return is_there && row < step.active; }
  FOURFOLD_FN int64_t of_batch(const Sequence& sequence) const { return int64_t(row) * sequence.hidden_size + unit; }
};

// Numbers in shared memory: of a row, and of a step.
template <int columns, int chunks>
constexpr int shared_row = columns * chunks * block_chunk;
template <int columns, int chunks>
constexpr int shared_step = rows_of_block * shared_row<columns, chunks>;

// A thread's weights: of each column, its quarter of the depth.
template <int columns, int chunks>
struct BlockWeights {
  float v[columns][chunks][values_at_once];

  // at(column, k): a weight.
  template <typename At>
  FOURFOLD_FN void load(const Owner& owner, int size, const At& at) {
#pragma unroll
    for (int column = 0; column < columns; ++column) {
#pragma unroll
      for (int chunk = 0; chunk < chunks; ++chunk) {
#pragma unroll
        for (int e = 0; e < values_at_once; ++e) {
          const int k = chunk * block_chunk + owner.part * values_at_once + e;
          v[column][chunk][e] = owner.unit < size && k < size ? at(column, k) : 0.0f;
        }
      }
    }
  }
};

// sums[column] += the thread's quarter of a row times its weights. The row has its columns one after the other if
// is_apart, and is the same for all columns otherwise.
template <bool is_apart, int columns, int chunks, int sums_count>
FOURFOLD_FN void multiply_row(float (&sums)[sums_count], const float* row, const Owner& owner, const BlockWeights<columns, chunks>& weights) {
  constexpr int rows = is_apart ? columns : 1;
#pragma unroll
  for (int r = 0; r < rows; ++r) {
    float4 values[chunks];
#pragma unroll
    for (int chunk = 0; chunk < chunks; ++chunk) {
      values[chunk] = *reinterpret_cast<const float4*>(row + (r * chunks + chunk) * block_chunk + owner.part * values_at_once);
    }
#pragma unroll
    for (int chunk = 0; chunk < chunks; ++chunk) {
      const float v[] = {values[chunk].x, values[chunk].y, values[chunk].z, values[chunk].w};
#pragma unroll
      for (int e = 0; e < values_at_once; ++e) {
#pragma unroll
        for (int c = 0; c < columns / rows; ++c) sums[is_apart ? 0 : c] += weights.v[is_apart ? r : c][chunk][e] * v[e];
      }
    }
  }
}

// Likewise for all rows, of which each has its columns in shared memory.
template <bool is_apart, int columns, int chunks, int sums_count>
FOURFOLD_FN void multiply_rows(float (&sums)[rows_of_block][sums_count], const float* first, int rows, const Owner& owner,
                               const BlockWeights<columns, chunks>& weights) {
#pragma unroll
  for (int row = 0; row < rows_of_block; ++row) {
    if (row >= rows) break;
    multiply_row<is_apart>(sums[row], first + row * shared_row<is_apart ? columns : 1, chunks>, owner, weights);
  }
}

// Adds up what the four threads of a unit have for each row; each thread returns the sums of its own row.
template <int columns>
FOURFOLD_FN Values<float, columns> own_row(const float (&sums)[rows_of_block][columns], const Owner& owner, int rows) {
  const bool upper = (owner.part & 2) != 0, odd = (owner.part & 1) != 0;
  Values<float, columns> result;
  if (rows == 1) {
#pragma unroll
    for (int c = 0; c < columns; ++c) {
      const float half = sums[0][c] + from_lane_across(sums[0][c], 2);
      result.v[c] = half + from_lane_across(half, 1);
    }
    return result;
  }
#pragma unroll
  for (int c = 0; c < columns; ++c) {
    const float first = (upper ? sums[2][c] : sums[0][c]) + from_lane_across(upper ? sums[0][c] : sums[2][c], 2);
    const float second = (upper ? sums[3][c] : sums[1][c]) + from_lane_across(upper ? sums[1][c] : sums[3][c], 2);
    result.v[c] = (odd ? second : first) + from_lane_across(odd ? first : second, 1);
  }
  return result;
}

// Zeros the block's shared memory: positions of the depth without a unit are never written.
FOURFOLD_FN void clear_shared(int floats) {
  for (int at = static_cast<int>(threadIdx.x); at < floats; at += static_cast<int>(blockDim.x)) shared_memory<float>()[at] = 0.0f;
  __syncthreads();
}

// As a value of the layer's type.
template <typename T>
FOURFOLD_FN float as_stored(float value) { return static_cast<float>(static_cast<T>(value)); }

// What a thread's element of a step reads besides h.
template <typename Cell, typename T>
struct BlockForwardInputs {
  T projection[Cell::gates] = {};
  bool restarts = false;
  int64_t at = 0;  // of the row's first unit

  FOURFOLD_FN BlockForwardInputs(const SequenceForward<T>& job, const Owner& own, const Step& step) {
    if (!own.is_in(step)) return;
    const int size = job.sequence.hidden_size;
    at = (step.first + own.row) * size;
    const T* const gate = job.projection + at * Cell::gates + own.unit;
#pragma unroll
    for (int g = 0; g < Cell::gates; ++g) projection[g] = gate[g * size];
    restarts = step.restarts(job.sequence, own.row);
  }

  // hidden: the products of h with the weights.
  FOURFOLD_FN formulas::CellStep<float, Cell::kept> compute(Values<float, Cell::gates> hidden,
                                                            const Values<float, Cell::gates>& bias, float state) const {
    Values<float, Cell::gates> input;
#pragma unroll
    for (int g = 0; g < Cell::gates; ++g) {
      input.v[g] = static_cast<float>(projection[g]);
      hidden.v[g] += bias.v[g];
    }
    return Cell::forward(input, hidden, restarts ? 0.0f : state);
  }

  FOURFOLD_FN void store(const SequenceForward<T>& job, const Owner& own, const formulas::CellStep<float, Cell::kept>& next) const {
    job.output[at + own.unit] = static_cast<T>(next.h);
    if (job.kept == nullptr) return;
    if (Cell::has_c) job.cells[at + own.unit] = static_cast<T>(next.state);
    T* const kept = job.kept + at * Cell::kept + own.unit;
#pragma unroll
    for (int k = 0; k < Cell::kept; ++k) kept[k * job.sequence.hidden_size] = static_cast<T>(next.kept.v[k]);
  }
};

template <typename Cell, typename T, int chunks>
__global__ void __launch_bounds__(block_threads<chunks>) one_block_forward(SequenceForward<T> job, int rows) {
  constexpr int gates = Cell::gates;
  constexpr int step_values = shared_step<1, chunks>;
  const Sequence& sequence = job.sequence;
  const int size = sequence.hidden_size;
  const Owner own(sequence, rows);
  BlockWeights<gates, chunks> weights;
  weights.load(own, size, [&](int gate, int k) {
    return static_cast<float>(job.weights[(int64_t(gate) * size + own.unit) * job.leading_dim + k]);
  });
  Values<float, gates> bias{};
  for (int g = 0; g < gates && own.unit < size; ++g) bias.v[g] = read_or_zero<float>(job.bias, g * size + own.unit);
  float state = own.is_there ? read_or_zero<float>(job.state_0, own.of_batch(sequence)) : 0.0f;

  clear_shared(2 * step_values);
  float* const rows_of_h = shared_memory<float>();
  float* const own_h = rows_of_h + own.part * shared_row<1, chunks> + own.unit;
  Step step = end_of(sequence, sequence.reverse);
  BlockForwardInputs<Cell, T> inputs(job, own, step);
  if (own.is_there) {
    const float h = read_or_zero<float>(job.h_0, own.of_batch(sequence));
    own_h[0] = inputs.restarts ? 0.0f : h;
    own_h[step_values] = h;  // for a row that begins in a later step
  }
  __syncthreads();
  for (int s = 0; s < sequence.time; ++s) {
    const bool is_last = s + 1 == sequence.time;
    const Step following = is_last ? Step{} : step_after(sequence, step, sequence.reverse);
    const BlockForwardInputs<Cell, T> next_inputs(job, own, following);
    float sums[rows_of_block][gates] = {};
    multiply_rows<false>(sums, rows_of_h + s % 2 * step_values, rows, own, weights);
    const Values<float, gates> hidden = own_row(sums, own, rows);
    const bool there = own.is_in(step);
    formulas::CellStep<float, Cell::kept> next{};
    if (there) {
      next = inputs.compute(hidden, bias, state);
      state = next.state;
    }
    if (!is_last) {
      float& next_h = own_h[(s + 1) % 2 * step_values];
      if (next_inputs.restarts) {
        next_h = 0.0f;
      } else if (there) {
        next_h = as_stored<T>(next.h);
      }
      __syncthreads();
    }
    if (there) inputs.store(job, own, next);
    step = following;
    inputs = next_inputs;
  }
  if (own.is_there && job.c_n != nullptr) job.c_n[own.of_batch(sequence)] = static_cast<T>(state);
}

// What a thread's element of a step reads besides the gradient of h.
template <typename Cell, typename T>
struct BlockBackwardInputs {
  T kept[Cell::kept];
  T before;
  T after;
  T grad_output;
  bool restarts;
  int64_t at;  // of the row's first unit

  // before_step: the previous step of the sequence.
  FOURFOLD_FN BlockBackwardInputs(const SequenceBackward<T>& job, const Owner& own, const Step& step, const Step& before_step) {
    restarts = false;
    if (!own.is_in(step)) return;
    const int size = job.sequence.hidden_size;
    at = (step.first + own.row) * size;
    const T* const of_kept = job.kept + at * Cell::kept + own.unit;
#pragma unroll
    for (int k = 0; k < Cell::kept; ++k) kept[k] = of_kept[k * size];
    const bool known = own.row < before_step.active;
    const T* states = known ? job.states : job.state_0;
    before = read_or_zero<T>(states, (known ? before_step.first + own.row : own.row) * int64_t(size) + own.unit);
    after = job.states[at + own.unit];
    grad_output = read_or_zero<T>(job.grad_output, at + own.unit);
    restarts = step.restarts(job.sequence, own.row);
  }

  // grad_h, grad_state: the gradients of the step's results.
  FOURFOLD_FN auto differentiate(float grad_h, float grad_state) const {
    Values<float, Cell::kept> of_forward;
#pragma unroll
    for (int k = 0; k < Cell::kept; ++k) of_forward.v[k] = static_cast<float>(kept[k]);
    return Cell::backward(of_forward, restarts ? 0.0f : static_cast<float>(before), static_cast<float>(after),
                          grad_h + static_cast<float>(grad_output), grad_state);
  }
};

template <typename Cell, typename T, int chunks>
__global__ void __launch_bounds__(block_threads<chunks>) one_block_backward(SequenceBackward<T> job, int rows) {
  constexpr int gates = Cell::gates;
  constexpr int step_values = shared_step<gates, chunks>;
  const Sequence& sequence = job.sequence;
  const int size = sequence.hidden_size;
  const Owner own(sequence, rows);
  BlockWeights<gates, chunks> weights;
  weights.load(own, size, [&](int gate, int k) {
    return static_cast<float>(job.weights[(int64_t(gate) * size + k) * job.leading_dim + own.unit]);
  });
  float grad_h = own.is_there ? read_or_zero<float>(job.grad_h_n, own.of_batch(sequence)) : 0.0f;
  float grad_state = own.is_there ? read_or_zero<float>(job.grad_c_n, own.of_batch(sequence)) : 0.0f;

  clear_shared(2 * step_values);
  float* const rows_of_gates = shared_memory<float>();
  float* const own_gates = rows_of_gates + own.part * shared_row<gates, chunks> + own.unit;
  const auto before_of = [&](int s, const Step& step) {
    return s + 1 < sequence.time ? step_after(sequence, step, !sequence.reverse) : Step{};
  };
  Step step = end_of(sequence, !sequence.reverse);
  Step before = before_of(0, step);
  BlockBackwardInputs<Cell, T> inputs(job, own, step, before);
  for (int s = 0; s < sequence.time; ++s) {
    const Step two_before = before_of(s + 1, before);
    const BlockBackwardInputs<Cell, T> next_inputs(job, own, before, two_before);
    const bool there = own.is_in(step);
    const bool restarts = there && inputs.restarts;
    if (there) {
      const auto result = inputs.differentiate(grad_h, grad_state);
      grad_state = restarts ? 0.0f : result.state;
      T* const gate = job.grad_gates + inputs.at * Cell::grads + own.unit;
#pragma unroll
      for (int g = 0; g < Cell::grads; ++g) {
        gate[g * size] = static_cast<T>(result.gates.v[g]);
        const int of_product = g - (Cell::grads - gates);  // the last slots belong to the recurrent part
        if (of_product >= 0) own_gates[s % 2 * step_values + of_product * chunks * block_chunk] = as_stored<T>(result.gates.v[g]);
      }
    }
    if (!job.need_states && s + 1 == sequence.time) return;
    __syncthreads();
    float sums[rows_of_block][1] = {};
    multiply_rows<true>(sums, rows_of_gates + s % 2 * step_values, rows, own, weights);
    const float total = own_row(sums, own, rows).v[0];
    if (there) grad_h = restarts ? 0.0f : total;
    step = before;
    before = two_before;
    inputs = next_inputs;
  }
  if (!own.is_there) return;
  if (!Cell::has_c) grad_h += grad_state;
  if (job.grad_h_0 != nullptr) job.grad_h_0[own.of_batch(sequence)] = static_cast<T>(grad_h);
  if (job.grad_c_0 != nullptr) job.grad_c_0[own.of_batch(sequence)] = static_cast<T>(grad_state);
}

// Launches `kernel` for all rows: with as many blocks as the device has multiprocessors, if there are so many rows, before
// a block has more than one.
template <typename Job>
void launch_blocks(const RecurrentLayer& layer, void (*kernel)(Job, int), const Job& job, int values_of_step) {
  const int64_t multiprocessors = limits(layer.place).multiprocessors;
  int rows = 1;
  while (rows < rows_of_block && layer.batch > rows * multiprocessors) rows *= 2;
  const int64_t threads = (threads_of_unit * layer.hidden_size + group_size - 1) / group_size * group_size;
  const Grid grid{(layer.batch + rows - 1) / rows, static_cast<int>(threads),
                  2 * values_of_step * static_cast<int64_t>(sizeof(float))};
  launch(layer.place, grid, kernel, job, rows);
}

}  // namespace fourfold::gpu
