// A cell applied to one unit of one row, and its derivative; shared by the single step and the loops over time.
//
// cpp/formulas/gates.h defines Cells. T is the type in memory. State is the type of the values that a loop carries from
// step to step, which is wider than a 16-bit T; for a single step both are the same.
#pragma once

#include "math.cuh"

namespace fourfold::gpu {

namespace formulas {
#include "formulas/gates.h"
#include "formulas/gru.h"
#include "formulas/lltm.h"
#include "formulas/lstm.h"
}

using formulas::Gru;
using formulas::Lltm;
using formulas::Lstm;
using formulas::Values;

template <typename T>
FOURFOLD_ANYWHERE T* at(T* data, int64_t offset) {
  return data == nullptr ? nullptr : data + offset;
}

template <typename V, typename T>
FOURFOLD_FN V read_or_zero(const T* from, int64_t at) {
  return from == nullptr ? V(0) : static_cast<V>(from[at]);
}

// The previous state of a step's rows, (rows, hidden_size): of the first `known` rows from another step, of the others
// the layer's initial state. Rows that restart have zeros.
template <typename T>
struct Before {
  const T* step;
  const T* initial;  // or null for zeros
  int64_t known;
  const bool* reset;  // (rows), or null if no row restarts

  FOURFOLD_FN bool restarts(int64_t row) const { return reset != nullptr && reset[row]; }

  // Null for zeros.
  FOURFOLD_FN const T* row(int64_t row, int64_t hidden_size) const {
    if (restarts(row)) return nullptr;
    return at(row < known ? step : initial, row * hidden_size);
  }
};

// Contiguous rows of one step: gate by gate, then unit by unit. Null outputs aren't written, null inputs are zero.
template <typename T, typename State>
struct CellForward {
  int64_t rows;
  int64_t hidden_size;
  const T* projection;  // (rows, gates * hidden_size): the input's part of the gates, with its bias
  const T* product;     // likewise the recurrent part, if torch's product has computed it
  const T* bias;        // (gates * hidden_size): of the recurrent part
  const bool* reset;    // (rows)
  const State* state;   // (rows, hidden_size), like those below; may alias next_state
  State* next_state;
  T* next_h;
  T* kept;   // (rows, kept * hidden_size)
  T* cells;  // a copy of next_state for the backward
};

template <typename T, typename State>
struct CellBackward {
  int64_t rows;
  int64_t hidden_size;
  const T* kept;
  Before<T> state;
  const T* next_state;
  const State* grad_h;
  const T* grad_output;          // added to grad_h
  const State* grad_next_state;  // may alias grad_state
  T* grad_gates;                 // (rows, grads * hidden_size)
  State* grad_state;
};

template <typename Cell, typename T, typename State>
FOURFOLD_FN void forward_unit(const CellForward<T, State>& job, int64_t row, int64_t unit,
                              const Compute<T> (&product)[Cell::gates]) {
  using V = Compute<T>;
  const int64_t size = job.hidden_size;
  const int64_t at = row * size + unit;
  const bool restarts = job.reset != nullptr && job.reset[row];
  Values<V, Cell::gates> input;
  Values<V, Cell::gates> hidden;
  for (int g = 0; g < Cell::gates; ++g) {
    const int64_t gate = (row * Cell::gates + g) * size + unit;
    input.v[g] = read_or_zero<V>(job.projection, gate);
    hidden.v[g] = product[g] + read_or_zero<V>(restarts ? nullptr : job.product, gate) +
                  read_or_zero<V>(job.bias, g * size + unit);
  }
  const auto next = Cell::forward(input, hidden, restarts ? V(0) : static_cast<V>(job.state[at]));
  job.next_state[at] = static_cast<State>(next.state);
  job.next_h[at] = static_cast<T>(next.h);
  if (job.cells != nullptr) job.cells[at] = static_cast<T>(next.state);
  if (job.kept == nullptr) return;
  for (int k = 0; k < Cell::kept; ++k) {
    job.kept[(row * Cell::kept + k) * size + unit] = static_cast<T>(next.kept.v[k]);
  }
}

template <typename Cell, typename T, typename State>
FOURFOLD_FN void backward_unit(const CellBackward<T, State>& job, int64_t row, int64_t unit) {
  using V = Compute<T>;
  const int64_t size = job.hidden_size;
  const int64_t at = row * size + unit;
  Values<V, Cell::kept> kept;
  for (int k = 0; k < Cell::kept; ++k) {
    kept.v[k] = static_cast<V>(job.kept[(row * Cell::kept + k) * size + unit]);
  }
  const auto result =
      Cell::backward(kept, read_or_zero<V>(job.state.row(row, size), unit), static_cast<V>(job.next_state[at]),
                     read_or_zero<V>(job.grad_h, at) + read_or_zero<V>(job.grad_output, at),
                     read_or_zero<V>(job.grad_next_state, at));
  for (int g = 0; g < Cell::grads; ++g) {
    job.grad_gates[(row * Cell::grads + g) * size + unit] = static_cast<T>(result.gates.v[g]);
  }
  job.grad_state[at] = job.state.restarts(row) ? State(0) : static_cast<State>(result.state);
}

}  // namespace fourfold::gpu
