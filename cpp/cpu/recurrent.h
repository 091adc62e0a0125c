// The time loop of a recurrent layer, forward and backward, for any Cell (cell.h says what that is).
// Threads share the batch's rows out among themselves and each runs its rows through all steps, so no step waits.
#pragma once

#include <cstring>

#include "cpu/cell.h"
#include "ops/recurrent_job.h"

namespace fourfold::cpu::FOURFOLD_CPU_LEVEL {

// The rows that make a part worth a thread of its own: some 2^18 multiply-adds.
inline int64_t row_grain(const RecurrentLayer& layer, int64_t gates) {
  const int64_t work = layer.time * gates * layer.hidden_size * layer.hidden_size + 1;
  return 1 + (int64_t(1) << 18) / work;
}

// Of the batch rows [begin, end), how many take part in step t; they come first.
inline int64_t rows_of_part(const RecurrentLayer& layer, int64_t t, int64_t begin, int64_t end) {
  const int64_t active = active_rows(layer, t);
  return (end < active ? end : active) - begin;
}

template <typename Cell, typename S>
class ForwardLoop {
 public:
  explicit ForwardLoop(const RecurrentForward& job)
      : job_(job), layer_(job.layer), weights_(packed(job.layer)) {}

  void run() const {
    parallel(layer_.batch, row_grain(layer_, gates), [this](int64_t begin, int64_t end) {
      for (int64_t s = 0; s < layer_.time; ++s) step(layer_.reverse ? layer_.time - 1 - s : s, begin, end);
    });
  }

 private:
  static constexpr int gates = Cell::gates;

  static Packed<S, gates> packed(const RecurrentLayer& layer) {
    const int64_t size = layer.hidden_size;
    const int64_t leading_dim = layer.weights_leading_dim;
    return Packed<S, gates>::grouped(
        static_cast<const S*>(layer.weights), size, size, 1, leading_dim, size * leading_dim);
  }

  void step(int64_t t, int64_t begin, int64_t end) const {
    const int64_t rows = rows_of_part(layer_, t, begin, end);
    const int64_t size = layer_.hidden_size;
    if (rows <= 0 || size == 0) return;
    const int64_t first = first_row(layer_, t) + begin;
    S* h = static_cast<S*>(job_.h) + begin * size;
    for (int64_t p = 0; p < weights_.panels(); ++p) {
      multiply_rows<gates>(
          static_cast<const S*>(h), size, 1, rows, weights_.panel(p), size,
          [&](int64_t row, const Vectorized<S>(&product)[gates]) {
            forward_units<Cell, S>(row_of(first + row, begin + row), size, p * lanes<S>, product);
          });
    }
    // Only now: every unit of the new h is computed from all units of the old.
    std::memcpy(h, static_cast<const S*>(job_.output) + first * size, static_cast<size_t>(rows * size) * sizeof(S));
  }

  ForwardRow<S> row_of(int64_t row, int64_t state_row) const {
    const int64_t size = layer_.hidden_size;
    S* c = at_row(static_cast<S*>(job_.c), state_row, size);
    return {at_row(static_cast<const S*>(job_.projection), row, gates * size),
            c,
            at_row(static_cast<S*>(job_.output), row, size),
            c,
            at_row(static_cast<S*>(job_.activated), row, gates * size),
            at_row(static_cast<S*>(job_.cells), row, size)};
  }

  const RecurrentForward& job_;
  const RecurrentLayer& layer_;
  Packed<S, gates> weights_;
};

template <typename Cell, typename S>
class BackwardLoop {
 public:
  explicit BackwardLoop(const RecurrentBackward& job)
      : job_(job),
        layer_(job.layer),
        weights_(static_cast<const S*>(layer_.weights), gates * layer_.hidden_size, layer_.hidden_size,
                 layer_.weights_leading_dim, 1) {}

  void run() const {
    parallel(layer_.batch, row_grain(layer_, gates), [this](int64_t begin, int64_t end) {
      for (int64_t s = 0; s < layer_.time; ++s) step(layer_.reverse ? s : layer_.time - 1 - s, begin, end);
    });
  }

 private:
  static constexpr int gates = Cell::gates;
  static constexpr int width = 3;

  void step(int64_t t, int64_t begin, int64_t end) const {
    const int64_t rows = rows_of_part(layer_, t, begin, end);
    const int64_t size = layer_.hidden_size;
    if (rows <= 0 || size == 0) return;
    const int64_t first = first_row(layer_, t) + begin;
    for (int64_t row = 0; row < rows; ++row) backward_row<Cell, S>(row_of(first + row, begin + row), size);
    S* grad_h = static_cast<S*>(job_.grad_h) + begin * size;
    multiply_all(
        static_cast<const S*>(job_.grad_gates) + first * gates * size, gates * size, 1, rows, weights_, size,
        [&](int64_t row, int64_t column, const Vectorized<S>& v, int64_t count) {
          store_lanes(grad_h + row * size + column, v, count);
        });
  }

  BackwardRow<S> row_of(int64_t row, int64_t state_row) const {
    const int64_t size = layer_.hidden_size;
    S* grad_c = at_row(static_cast<S*>(job_.grad_c), state_row, size);
    return {at_row(static_cast<const S*>(job_.activated), row, gates * size),
            at_row(static_cast<const S*>(job_.cells), row, size),
            {at_row(static_cast<const S*>(job_.grad_h), state_row, size),
             at_row(static_cast<const S*>(job_.grad_output), row, size)},
            grad_c,
            at_row(static_cast<S*>(job_.grad_gates), row, gates * size),
            grad_c};
  }

  const RecurrentBackward& job_;
  const RecurrentLayer& layer_;
  Packed<S, width> weights_;
};

template <template <typename, typename> class Loop, typename Cell, typename Job>
void run_loop(const Job& job) {
  if (job.layer.kind == Kind::float64) {
    Loop<Cell, double>(job).run();
  } else {
    Loop<Cell, float>(job).run();
  }
}

}  // namespace fourfold::cpu::FOURFOLD_CPU_LEVEL
