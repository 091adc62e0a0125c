// A cell applied to one unit of one row, and its derivative: what the single step and the loops over time share.
//
// A Cell gives: gates, the number of gates; Gates<T>, one value of each in v[gates];
//   forward(Gates gates, T c) -> {activated, h, c};  backward(Gates activated, T next_c, T grad_h, T grad_next_c)
//   -> {grad_gates, grad_c}.
// T is the type in memory. State is that of what a loop carries from step to step in sums, which is wider where T has
// 16 bits; for a single step both are the same.
#pragma once

#include "math.cuh"

namespace fourfold::gpu {

namespace formulas {
#include "formulas/lltm_cell.h"
}

struct Lltm {
  static constexpr int gates = 3;
  template <typename T>
  using Gates = formulas::LltmGates<T>;

  template <typename T>
  static FOURFOLD_FN formulas::LltmForward<T> forward(Gates<T> gates, T c) {
    return formulas::lltm_forward(gates, c);
  }

  template <typename T>
  static FOURFOLD_FN formulas::LltmBackward<T> backward(Gates<T> activated, T next_c, T grad_h, T grad_next_c) {
    return formulas::lltm_backward(activated, next_c, grad_h, grad_next_c);
  }
};

// Rows of one step, contiguous: gates have gates * hidden_size values, gate by gate, the others hidden_size. What is
// null is left out, and zero where it is read.
template <typename T, typename State>
struct CellForward {
  int64_t rows;
  int64_t hidden_size;
  const T* projection;  // the input's part of the gates; may be the same as activated
  const T* product;     // the recurrent part, where a product of torch's has made it
  const T* bias;        // (gates * hidden_size), unless the projection has it
  const State* c;       // may be the same as next_c
  State* next_c;
  T* next_h;
  T* activated;
  T* cells;  // next_c once more, for the backward
};

template <typename T, typename State>
struct CellBackward {
  int64_t rows;
  int64_t hidden_size;
  const T* activated;
  const T* next_c;
  const State* grad_h;
  const T* grad_output;  // more of the gradient of h
  const State* grad_next_c;  // may be the same as grad_c
  T* grad_gates;
  State* grad_c;
};

template <typename V, typename T>
FOURFOLD_FN V read_or_zero(const T* from, int64_t at) {
  return from == nullptr ? V(0) : static_cast<V>(from[at]);
}

template <typename Cell, typename T, typename State>
FOURFOLD_FN void forward_unit(const CellForward<T, State>& job, int64_t row, int64_t unit,
                              const Compute<T> (&product)[Cell::gates]) {
  using V = Compute<T>;
  const int64_t size = job.hidden_size;
  const int64_t at = row * size + unit;
  typename Cell::template Gates<V> values;
  for (int g = 0; g < Cell::gates; ++g) {
    const int64_t gate = row * Cell::gates * size + g * size + unit;
    values.v[g] = product[g] + read_or_zero<V>(job.product, gate) + read_or_zero<V>(job.projection, gate) +
                  read_or_zero<V>(job.bias, g * size + unit);
  }
  const auto next = Cell::forward(values, static_cast<V>(job.c[at]));
  job.next_c[at] = static_cast<State>(next.c);
  job.next_h[at] = static_cast<T>(next.h);
  if (job.cells != nullptr) job.cells[at] = static_cast<T>(next.c);
  if (job.activated == nullptr) return;
  for (int g = 0; g < Cell::gates; ++g) {
    job.activated[row * Cell::gates * size + g * size + unit] = static_cast<T>(next.activated.v[g]);
  }
}

template <typename Cell, typename T, typename State>
FOURFOLD_FN void backward_unit(const CellBackward<T, State>& job, int64_t row, int64_t unit) {
  using V = Compute<T>;
  const int64_t size = job.hidden_size;
  const int64_t at = row * size + unit;
  typename Cell::template Gates<V> values;
  for (int g = 0; g < Cell::gates; ++g) {
    values.v[g] = static_cast<V>(job.activated[row * Cell::gates * size + g * size + unit]);
  }
  const V grad_h = read_or_zero<V>(job.grad_h, at) + read_or_zero<V>(job.grad_output, at);
  const auto result =
      Cell::backward(values, static_cast<V>(job.next_c[at]), grad_h, read_or_zero<V>(job.grad_next_c, at));
  for (int g = 0; g < Cell::gates; ++g) {
    job.grad_gates[row * Cell::gates * size + g * size + unit] = static_cast<T>(result.grad_gates.v[g]);
  }
  job.grad_c[at] = static_cast<State>(result.grad_c);
}

}  // namespace fourfold::gpu
