// The kernels of a recurrent layer for any Cell: one launch for the whole sequence if a block holds the weights, one or
// two if the device does, otherwise one or two launches per step. The input's part of the gates, and the gradients that
// follow from the gates', are torch's products.
#pragma once

#include <algorithm>
#include <optional>

#include "ops/path.h"
#include "ops/recurrent_products.h"
#include "sequence_launch.cuh"
#include "step.cuh"

namespace fourfold::gpu {

// Each row's h after its last step, from the output.
void copy_final_h(const RecurrentForward& job);

// The h before each row of the sequence: (rows, hidden_size).
Tensor previous_h(const RecurrentBackward& job);

// The previous state of step t's rows. states: (rows, hidden_size), after each step.
template <typename T>
Before<T> state_before(const RecurrentLayer& layer, int64_t t, const void* states, const void* initial) {
  const int64_t before = layer.reverse ? t + 1 : t - 1;
  const bool starts = before < 0 || before >= layer.time;
  return {
      .step = starts ? nullptr : static_cast<const T*>(states) + first_row(layer, before) * layer.hidden_size,
      .initial = static_cast<const T*>(initial),
      .known = starts ? 0 : std::min(active_rows(layer, t), active_rows(layer, before)),
      .reset = at(resets_of(layer), first_row(layer, t)),
  };
}

// A state of the batch in the compute dtype.
Tensor empty_state(const RecurrentLayer& layer);

// Whether torch computes a step's product. It rounds the product to T, so in 16 bits only large steps use it.
template <typename T>
bool by_vendor(int64_t outputs, int64_t depth) {
  return vendor_wins(outputs * depth) || (sizeof(T) > 2 && vendor_wins_in_depth(depth));
}

template <typename Cell, typename T>
class PlainForward {
 public:
  PlainForward(const RecurrentForward& job, const Tensor& projection)
      : job_(job),
        layer_(job.layer),
        projection_(static_cast<const T*>(data_of(projection))),
        states_(empty_state(layer_)),
        state_(static_cast<V*>(out_data(states_))) {}

  void run() const {
    const auto* initial = static_cast<const T*>(Cell::has_c ? job_.c_0 : job_.h_0);
    add(layer_.place, SumJob<V, T>{layer_.batch, layer_.hidden_size, initial, nullptr, nullptr, state_});
    for (int64_t s = 0; s < layer_.time; ++s) run_step(layer_.reverse ? layer_.time - 1 - s : s);
    if (!Cell::has_c) return;
    auto* c_n = static_cast<T*>(job_.c_n);
    add(layer_.place, SumJob<T, V>{layer_.batch, layer_.hidden_size, state_, nullptr, nullptr, c_n});
  }

 private:
  using V = Compute<T>;

  void run_step(int64_t t) const {
    const int64_t size = layer_.hidden_size;
    const int64_t first = first_row(layer_, t);
    T* output = static_cast<T*>(job_.output);
    const StepFactors<T> factors{
        .h = state_before<T>(layer_, t, output, job_.h_0),
        .x = nullptr,
        .input_size = 0,
        .weights = static_cast<const T*>(layer_.weight_hh),
        .leading_dim = layer_.weight_hh_leading_dim,
    };
    CellForward<T, V> cell{
        .rows = active_rows(layer_, t),
        .hidden_size = size,
        .projection = projection_ + first * Cell::gates * size,
        .product = nullptr,
        .bias = static_cast<const T*>(layer_.bias_hh),
        .reset = factors.h.reset,
        .state = state_,
        .next_state = state_,
        .next_h = output + first * size,
        .kept = at(static_cast<T*>(job_.kept), first * Cell::kept * size),
        .cells = at(static_cast<T*>(job_.cells), first * size),
    };
    // A vendor's product needs contiguous rows.
    const int64_t known = factors.h.known;
    const bool together = known == 0 || known == cell.rows;
    if (!together || !by_vendor<T>(cell.rows * Cell::gates * size, size)) {
      return step<Cell>(layer_.place, factors, cell);
    }
    const T* rows = known == 0 ? factors.h.initial : factors.h.step;
    const Tensor h = matrix(layer_.place, rows, cell.rows, size, size, layer_.kind);
    const Tensor weights =
        matrix(layer_.place, layer_.weight_hh, Cell::gates * size, size, layer_.weight_hh_leading_dim, layer_.kind);
    const Tensor product = linear(h, weights, std::nullopt);
    cell.product = static_cast<const T*>(data_of(product));
    apply_cell<Cell>(layer_.place, cell);
  }

  const RecurrentForward& job_;
  const RecurrentLayer& layer_;
  const T* projection_;
  Tensor states_;  // (batch, hidden_size), in the compute dtype
  V* state_;
};

template <typename Cell, typename T>
class PlainBackward {
 public:
  PlainBackward(const RecurrentBackward& job, const Tensor& grad_gates)
      : job_(job),
        layer_(job.layer),
        grad_gates_(static_cast<T*>(out_data(grad_gates))),
        grads_h_(empty_state(layer_)),
        grads_state_(empty_state(layer_)),
        grad_h_(static_cast<V*>(out_data(grads_h_))),
        grad_state_(static_cast<V*>(out_data(grads_state_))) {}

  void run() const {
    begin(grad_h_, job_.grad_h_n);
    begin(grad_state_, job_.grad_c_n);
    for (int64_t s = 0; s < layer_.time; ++s) {
      const int64_t t = layer_.reverse ? s : layer_.time - 1 - s;
      step_gates(t);
      if (job_.need_states || s + 1 < layer_.time) step_h(t);
    }
    if (!job_.need_states) return;
    end(job_.grad_h_0, grad_h_, Cell::has_c ? nullptr : grad_state_);
    if (Cell::has_c) end(job_.grad_c_0, grad_state_, nullptr);
  }

 private:
  using V = Compute<T>;

  void begin(V* grad, const void* given) const {
    const auto* from = static_cast<const T*>(given);
    add(layer_.place, SumJob<V, T>{layer_.batch, layer_.hidden_size, from, nullptr, nullptr, grad});
  }

  void end(void* result, const V* grad, const V* more) const {
    add(layer_.place,
        SumJob<T, V>{layer_.batch, layer_.hidden_size, grad, more, nullptr, static_cast<T*>(result)});
  }

  const T* states() const { return static_cast<const T*>(Cell::has_c ? job_.cells : job_.output); }
  T* grad_gates(int64_t t) const { return grad_gates_ + first_row(layer_, t) * Cell::grads * layer_.hidden_size; }
  Before<T> before(int64_t t) const {
    return state_before<T>(layer_, t, states(), Cell::has_c ? job_.c_0 : job_.h_0);
  }

  void step_gates(int64_t t) const {
    const int64_t size = layer_.hidden_size;
    const int64_t first = first_row(layer_, t);
    apply_cell_backward<Cell>(
        layer_.place, CellBackward<T, V>{
                          .rows = active_rows(layer_, t),
                          .hidden_size = size,
                          .kept = static_cast<const T*>(job_.kept) + first * Cell::kept * size,
                          .state = before(t),
                          .next_state = states() + first * size,
                          .grad_h = grad_h_,
                          .grad_output = at(static_cast<const T*>(job_.grad_output), first * size),
                          .grad_next_state = grad_state_,
                          .grad_gates = grad_gates(t),
                          .grad_state = grad_state_,
                      });
  }

  // The gradient of h before the step, from the gates' gradients.
  void step_h(int64_t t) const {
    const int64_t size = layer_.hidden_size;
    const int64_t rows = active_rows(layer_, t);
    const int64_t depth = Cell::gates * size;
    const bool* reset = before(t).reset;
    const ProductJob<T, V> job{
        .rows = rows,
        .depth = depth,
        .columns = size,
        .a = grad_gates(t) + (Cell::grads - Cell::gates) * size,  // the last slots belong to the recurrent part
        .a_leading_dim = Cell::grads * size,
        .b = static_cast<const T*>(layer_.weight_hh),
        .b_leading_dim = layer_.weight_hh_leading_dim,
        .reset = reset,
        .out = grad_h_,
    };
    if (!by_vendor<T>(rows * size, depth)) return multiply(layer_.place, job);
    const Tensor product = mm(matrix(layer_.place, job.a, rows, depth, job.a_leading_dim, layer_.kind),
                              matrix(layer_.place, job.b, depth, size, job.b_leading_dim, layer_.kind));
    const auto* sums = static_cast<const T*>(data_of(product));
    add(layer_.place, SumJob<V, T>{rows, size, sums, nullptr, reset, grad_h_});
  }

  const RecurrentBackward& job_;
  const RecurrentLayer& layer_;
  T* grad_gates_;
  Tensor grads_h_;  // (batch, hidden_size), in the compute dtype; likewise grads_state_
  Tensor grads_state_;
  V* grad_h_;
  V* grad_state_;
};

// Whether to try these kernels; and an error if some are forced but unsupported.
bool wants(Path path);
void expect_choice(const RecurrentLayer& layer);

template <typename Cell>
void recurrent_forward(const RecurrentForward& job) {
  const Tensor projection = input_projection(job, Cell::gates);
  visit_floating(job.layer.kind, [&](auto type) {
    using T = typename decltype(type)::type;
    if constexpr (!std::is_same_v<T, double>) {
      if (wants(Path::block) && run_in_blocks<Cell, T>(job, projection)) return;
      if (wants(Path::persistent) && run_persistent<Cell, T>(job, projection)) return;
    }
    expect_choice(job.layer);
    PlainForward<Cell, T>(job, projection).run();
  });
  copy_final_h(job);
}

template <typename Cell>
void recurrent_backward(const RecurrentBackward& job) {
  const RecurrentLayer& layer = job.layer;
  const int64_t rows = first_row(layer, layer.time);
  const Tensor grad_gates = empty(layer.place, {rows, Cell::grads * layer.hidden_size}, dtype_of(layer.kind));
  visit_floating(layer.kind, [&](auto type) {
    using T = typename decltype(type)::type;
    if constexpr (!std::is_same_v<T, double>) {
      if (wants(Path::block) && run_in_blocks<Cell, T>(job, grad_gates)) return;
      if (wants(Path::persistent) && run_persistent<Cell, T>(job, grad_gates)) return;
    }
    expect_choice(layer);
    PlainBackward<Cell, T>(job, grad_gates).run();
  });
  const OptionalTensor h = job.need_weights ? OptionalTensor(previous_h(job)) : std::nullopt;
  finish_gradients(job, gradient_slots<Cell>(), grad_gates, h);
}

// The GPU's kernel table of a recurrent layer; it has no packed weights.
template <typename Cell>
inline constexpr RecurrentKernels recurrent_kernels{
    [](ScalarType, const RecurrentShape&) { return true; },
    recurrent_forward<Cell>,
    recurrent_backward<Cell>,
    nullptr,
    nullptr,
};

}  // namespace fourfold::gpu
