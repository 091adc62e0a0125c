// The kernels of a recurrent layer for any Cell: one launch for the whole sequence if a block holds the weights, one or two
// if the device does, otherwise one or two launches per step. The input's part of the gates, and the gradients that follow from the gates', are torch's
// products.
#pragma once

#include <algorithm>
#include <optional>

#include "one_block.cuh"
#include "ops/path.h"
#include "ops/recurrent_products.h"
#include "persistent.cuh"
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

// The sequence as an argument of the persistent kernels, and of those of one_block.cuh; empty if they don't support it.
std::optional<Sequence> as_sequence(const RecurrentLayer& layer);
std::optional<Sequence> as_block_sequence(const RecurrentLayer& layer, int gates);

inline int64_t padded_size(const RecurrentLayer& layer) {
  return (layer.hidden_size + block_units - 1) / block_units * block_units;
}

// h_0 (batch, padded_size), aligned to slots: the user's tensor, or a copy, which the caller must keep.
struct Aligned {
  const void* data;
  OptionalTensor copy;
};

Aligned aligned_h_0(const RecurrentForward& job);

// The memory (rows, values * padded_size) through which blocks pass values to each other: the result itself if it has no
// padding, or memory that the caller must keep.
struct PassedOn {
  void* data;
  OptionalTensor own;
};

PassedOn passed_on(const RecurrentLayer& layer, int values, void* result);

// The numbers of chunks of the depth that a warp can hold in registers, for each of which there is a kernel.
template <int... counts>
struct Chunks {
  // Calls f(std::integral_constant<int, n>()) for the first n with which 8 warps cover the depth; false if there is
  // none.
  template <typename F>
  static bool visit(int64_t depth, int64_t chunk, const F& f) {
    bool result = false;
    const auto takes = [&](auto count) {
      if (depth > warps * chunk * count) return false;
      result = f(count);
      return true;
    };
    static_cast<void>((takes(std::integral_constant<int, counts>()) || ...));
    return result;
  }
};

// Calls f with the kernels' rounding and the lists of chunks for T, of the forward and of the backward, which fit the
// registers of a thread. LSTM and GRU, whose sizes usually are powers of two, have fewer, because each is a kernel to
// compile and test. Above 512 units in unrounded float32 the LSTM's kernels wouldn't fit, so LSTM and GRU run step by
// step.
template <typename Cell, typename T, typename F>
bool with_variant(bool allow_tf32, const F& f) {
  constexpr int g = Cell::gates;
  constexpr bool every_size = std::is_same_v<Cell, Lltm>;
  if constexpr (std::is_same_v<T, float>) {
    const auto run = [&](auto rounding) {
      if constexpr (every_size) {
        return f(rounding, Chunks<1, 2, 4, 6, 8>(), Chunks<g, 2 * g, 4 * g, 6 * g, 8 * g>());
      } else if constexpr (decltype(rounding)::value == Rounding::tf32) {
        return f(rounding, Chunks<2, 4, 8>(), Chunks<2 * g, 4 * g, 8 * g>());
      } else {
        return f(rounding, Chunks<2, 4>(), Chunks<2 * g, 4 * g>());
      }
    };
    return allow_tf32 ? run(std::integral_constant<Rounding, Rounding::tf32>())
                      : run(std::integral_constant<Rounding, Rounding::none>());
  } else {
    const std::integral_constant<Rounding, Rounding::none> rounding;
    if constexpr (every_size) {
      return f(rounding, Chunks<1, 2, 3, 4>(), Chunks<g, 2 * g, 3 * g, 4 * g>());
    } else {
      return f(rounding, Chunks<1, 2, 4>(), Chunks<g, 2 * g, 4 * g>());
    }
  }
}

template <typename Cell, typename T>
SequenceForward<T> job_of(const RecurrentForward& job, const Sequence& sequence, const void* h_0, const Tensor& projection,
                          void* passed_on) {
  return {
      .sequence = sequence,
      .weights = static_cast<const T*>(job.layer.weight_hh),
      .leading_dim = job.layer.weight_hh_leading_dim,
      .bias = static_cast<const T*>(job.layer.bias_hh),
      .projection = static_cast<const T*>(data_of(projection)),
      .kept = static_cast<T*>(job.kept),
      .cells = static_cast<T*>(job.cells),
      .output = static_cast<T*>(job.output),
      .passed_on = static_cast<T*>(passed_on),
      .h_0 = static_cast<const T*>(h_0),
      .state_0 = static_cast<const T*>(Cell::has_c ? job.c_0 : job.h_0),
      .c_n = static_cast<T*>(job.c_n),
  };
}

template <typename Cell, typename T>
SequenceBackward<T> job_of(const RecurrentBackward& job, const Sequence& sequence, const Tensor& grad_gates,
                           void* passed_on) {
  return {
      .sequence = sequence,
      .weights = static_cast<const T*>(job.layer.weight_hh),
      .leading_dim = job.layer.weight_hh_leading_dim,
      .kept = static_cast<const T*>(job.kept),
      .states = static_cast<const T*>(Cell::has_c ? job.cells : job.output),
      .state_0 = static_cast<const T*>(Cell::has_c ? job.c_0 : job.h_0),
      .grad_output = static_cast<const T*>(job.grad_output),
      .grad_h_n = static_cast<const T*>(job.grad_h_n),
      .grad_c_n = static_cast<const T*>(job.grad_c_n),
      .grad_gates = static_cast<T*>(out_data(grad_gates)),
      .passed_on = static_cast<T*>(passed_on),
      .need_states = job.need_states,
      .grad_h_0 = static_cast<T*>(job.grad_h_0),
      .grad_c_0 = static_cast<T*>(job.grad_c_0),
  };
}

template <typename Cell, typename T>
bool run_persistent(const RecurrentForward& job, const Tensor& projection) {
  const std::optional<Sequence> sequence = as_sequence(job.layer);
  if (!sequence) return false;
  const Aligned h_0 = aligned_h_0(job);
  const PassedOn memory = passed_on(job.layer, 1, job.output);
  const SequenceForward<T> persistent = job_of<Cell, T>(job, *sequence, h_0.data, projection, memory.data);
  return with_variant<Cell, T>(job.layer.allow_tf32, [&](auto rounding, auto list, auto) {
    return decltype(list)::visit(sequence->padded_size, chunk_depth<T>, [&](auto chunks) {
      if (memory.own && !may_be_padded(decltype(chunks)::value * chunk_depth<T>)) return false;
      const auto kernel = persistent_forward<Cell, T, decltype(rounding)::value, decltype(chunks)::value>;
      const int64_t bytes = sequence->rows * sequence->padded_size * static_cast<int64_t>(sizeof(T));
      return launch_persistent(job.layer, kernel, persistent, Cell::gates, bytes);
    });
  });
}

template <typename Cell, typename T>
bool run_persistent(const RecurrentBackward& job, const Tensor& grad_gates) {
  const std::optional<Sequence> sequence = as_sequence(job.layer);
  if (!sequence) return false;
  const PassedOn memory = passed_on(job.layer, Cell::grads, out_data(grad_gates));
  const SequenceBackward<T> persistent = job_of<Cell, T>(job, *sequence, grad_gates, memory.data);
  return with_variant<Cell, T>(job.layer.allow_tf32, [&](auto rounding, auto, auto list) {
    return decltype(list)::visit(Cell::gates * sequence->padded_size, chunk_depth<T>, [&](auto chunks) {
      if (memory.own && !may_be_padded(decltype(chunks)::value * chunk_depth<T> / Cell::gates)) return false;
      const auto kernel = persistent_backward<Cell, T, decltype(rounding)::value, decltype(chunks)::value>;
      const int64_t bytes = sequence->rows * Cell::grads * sequence->padded_size * static_cast<int64_t>(sizeof(T));
      return launch_persistent(job.layer, kernel, persistent, 1, bytes);
    });
  });
}

// Calls f(std::integral_constant<int, n>()) for the first n chunks that cover the layer's units.
template <typename Cell, typename F>
void with_block_chunks(int size, const F& f) {
  if (size <= 2 * block_chunk) return f(std::integral_constant<int, 2>());
  if (size <= 4 * block_chunk) return f(std::integral_constant<int, 4>());
  f(std::integral_constant<int, most_block_chunks(Cell::gates)>());
}

template <typename Cell, typename T>
bool run_in_blocks(const RecurrentForward& job, const Tensor& projection) {
  const std::optional<Sequence> sequence = as_block_sequence(job.layer, Cell::gates);
  if (!sequence) return false;
  const SequenceForward<T> blocks = job_of<Cell, T>(job, *sequence, job.h_0, projection, nullptr);
  with_block_chunks<Cell>(sequence->hidden_size, [&](auto count) {
    constexpr int chunks = decltype(count)::value;
    launch_blocks(job.layer, one_block_forward<Cell, T, chunks>, blocks, shared_step<1, chunks>);
  });
  return true;
}

template <typename Cell, typename T>
bool run_in_blocks(const RecurrentBackward& job, const Tensor& grad_gates) {
  const std::optional<Sequence> sequence = as_block_sequence(job.layer, Cell::gates);
  if (!sequence) return false;
  const SequenceBackward<T> blocks = job_of<Cell, T>(job, *sequence, grad_gates, nullptr);
  with_block_chunks<Cell>(sequence->hidden_size, [&](auto count) {
    constexpr int chunks = decltype(count)::value;
    launch_blocks(job.layer, one_block_backward<Cell, T, chunks>, blocks, shared_step<Cell::gates, chunks>);
  });
  return true;
}

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
