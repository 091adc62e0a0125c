// A cell applied to one row of one step, and its derivative: what the single step and the time loop share.
//
// A Cell gives: gates, the number of gates; Gates<T>, one value of each in v[gates];
//   forward(Gates gates, T c) -> {activated, h, c};  backward(Gates activated, T next_c, T grad_h, T grad_next_c)
//   -> {grad_gates, grad_c}.
#pragma once

#include "cpu/matmul.h"

namespace fourfold::cpu::FOURFOLD_CPU_LEVEL {

// Pointers to one row: projection, activated and grad_gates have gates * hidden_size values, gate by gate; the others
// hidden_size.
template <typename S>
struct ForwardRow {
  const S* projection;
  const S* c;
  S* next_h;
  S* next_c;
  S* activated;  // null when no backward will follow
  S* cells;      // null likewise, or when next_c itself is kept
};

template <typename S>
struct BackwardRow {
  const S* activated;
  const S* next_c;
  const S* grad_h[2];  // their sum is the gradient of h; each may be null for zero
  const S* grad_next_c;
  S* grad_gates;
  S* grad_c;
};

// Null stays null: that is how a job leaves a tensor out.
template <typename T>
T* at_row(T* data, int64_t row, int64_t size) {
  return data == nullptr ? nullptr : data + row * size;
}

template <typename S>
int64_t lanes_left(int64_t size, int64_t first) {
  return size - first < lanes<S> ? size - first : lanes<S>;
}

template <typename S>
Vectorized<S> load_or_zero(const S* from, int64_t at, int64_t count) {
  return from == nullptr ? Vectorized<S>(S(0)) : load_lanes(from + at, count);
}

// The units from `unit` on, one vector of them; `product` is added to the row's projection.
template <typename Cell, typename S>
void forward_units(
    const ForwardRow<S>& row, int64_t hidden_size, int64_t unit, const Vectorized<S> (&product)[Cell::gates]) {
  const int64_t count = lanes_left<S>(hidden_size, unit);
  typename Cell::template Gates<Vectorized<S>> values;
  for (int g = 0; g < Cell::gates; ++g) {
    values.v[g] = product[g] + load_lanes(row.projection + g * hidden_size + unit, count);
  }
  const auto next = Cell::forward(values, load_lanes(row.c + unit, count));
  store_lanes(row.next_c + unit, next.c, count);
  store_lanes(row.next_h + unit, next.h, count);
  if (row.activated != nullptr) {
    for (int g = 0; g < Cell::gates; ++g) {
      store_lanes(row.activated + g * hidden_size + unit, next.activated.v[g], count);
    }
  }
  if (row.cells != nullptr) store_lanes(row.cells + unit, next.c, count);
}

template <typename Cell, typename S>
void backward_row(const BackwardRow<S>& row, int64_t hidden_size) {
  for (int64_t unit = 0; unit < hidden_size; unit += lanes<S>) {
    const int64_t count = lanes_left<S>(hidden_size, unit);
    typename Cell::template Gates<Vectorized<S>> values;
    for (int g = 0; g < Cell::gates; ++g) values.v[g] = load_lanes(row.activated + g * hidden_size + unit, count);
    const Vectorized<S> grad_h = load_or_zero(row.grad_h[0], unit, count) + load_or_zero(row.grad_h[1], unit, count);
    const auto result = Cell::backward(
        values, load_lanes(row.next_c + unit, count), grad_h, load_or_zero(row.grad_next_c, unit, count));
    for (int g = 0; g < Cell::gates; ++g) {
      store_lanes(row.grad_gates + g * hidden_size + unit, result.grad_gates.v[g], count);
    }
    store_lanes(row.grad_c + unit, result.grad_c, count);
  }
}

}  // namespace fourfold::cpu::FOURFOLD_CPU_LEVEL
