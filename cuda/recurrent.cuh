// The kernels of a recurrent layer for any Cell: one launch for the whole sequence where the device can hold it, else a
// launch or two a step.
#pragma once

#include <optional>

#include "ops/recurrent.h"
#include "persistent.cuh"
#include "step.cuh"

namespace fourfold::gpu {

// Each row's h after its last step, from the output.
inline void copy_final_h(const RecurrentForward& job, int64_t row_bytes) {
  const RecurrentLayer& layer = job.layer;
  const auto copy_rows = [&](int64_t t, int64_t begin, int64_t end) {
    if (begin >= end || row_bytes == 0) return;
    const char* from = static_cast<const char*>(job.output) + (first_row(layer, t) + begin) * row_bytes;
    char* to = static_cast<char*>(job.h) + begin * row_bytes;
    copy(layer.place, to, from, static_cast<size_t>((end - begin) * row_bytes));
  };
  if (layer.time == 0) return;
  if (layer.reverse) return copy_rows(0, 0, active_rows(layer, 0));
  for (int64_t t = 0; t < layer.time; ++t) {
    copy_rows(t, t + 1 < layer.time ? active_rows(layer, t + 1) : 0, active_rows(layer, t));
  }
}

template <typename T>
T* at(T* data, int64_t offset) {
  return data == nullptr ? nullptr : data + offset;
}

template <typename Cell, typename T>
class PlainForward {
 public:
  explicit PlainForward(const RecurrentForward& job) : job_(job), layer_(job.layer) {}

  void run() const {
    for (int64_t s = 0; s < layer_.time; ++s) run_step(layer_.reverse ? layer_.time - 1 - s : s);
  }

 private:
  void run_step(int64_t t) const {
    const int64_t size = layer_.hidden_size;
    const int64_t before = layer_.reverse ? t + 1 : t - 1;
    const bool starts = before < 0 || before >= layer_.time;
    const int64_t first = first_row(layer_, t);
    T* output = static_cast<T*>(job_.output);
    CellForward<T, Compute<T>> cell{
        .rows = active_rows(layer_, t),
        .hidden_size = size,
        .projection = static_cast<const T*>(job_.projection) + first * Cell::gates * size,
        .product = nullptr,
        .bias = nullptr,
        .c = static_cast<const Compute<T>*>(job_.c),
        .next_c = static_cast<Compute<T>*>(job_.c),
        .next_h = output + first * size,
        .activated = at(static_cast<T*>(job_.activated), first * Cell::gates * size),
        .cells = at(static_cast<T*>(job_.cells), first * size),
    };
    const int64_t known = starts ? 0 : std::min(cell.rows, active_rows(layer_, before));
    const StepFactors<T> factors{
        .previous = starts ? nullptr : output + first_row(layer_, before) * size,
        .initial = static_cast<const T*>(job_.h),
        .known = known,
        .x = nullptr,
        .input_size = 0,
        .weights = static_cast<const T*>(layer_.weights),
        .leading_dim = layer_.weights_leading_dim,
    };
    // A vendor's product takes rows that lie together.
    const bool together = known == 0 || known == cell.rows;
    if (!together || cell.rows * Cell::gates * size * size < vendor_work) {
      return step<Cell>(layer_.place, factors, cell);
    }
    const T* rows = known == 0 ? factors.initial : factors.previous;
    const Tensor h = matrix(layer_.place, rows, cell.rows, size, size, layer_.kind);
    const Tensor weights =
        matrix(layer_.place, layer_.weights, Cell::gates * size, size, layer_.weights_leading_dim, layer_.kind);
    const Tensor product = linear(h, weights, std::nullopt);
    cell.product = static_cast<const T*>(data_of(product));
    apply_cell<Cell>(layer_.place, cell);
  }

  const RecurrentForward& job_;
  const RecurrentLayer& layer_;
};

template <typename Cell, typename T>
class PlainBackward {
 public:
  explicit PlainBackward(const RecurrentBackward& job) : job_(job), layer_(job.layer) {}

  void run() const {
    for (int64_t s = 0; s < layer_.time; ++s) run_step(layer_.reverse ? s : layer_.time - 1 - s);
  }

 private:
  using V = Compute<T>;

  void run_step(int64_t t) const {
    const int64_t size = layer_.hidden_size;
    const int64_t first = first_row(layer_, t);
    const int64_t rows = active_rows(layer_, t);
    T* grad_gates = static_cast<T*>(job_.grad_gates) + first * Cell::gates * size;
    V* grad_h = static_cast<V*>(job_.grad_h);
    V* grad_c = static_cast<V*>(job_.grad_c);
    apply_cell_backward<Cell>(
        layer_.place, CellBackward<T, V>{
                          .rows = rows,
                          .hidden_size = size,
                          .activated = static_cast<const T*>(job_.activated) + first * Cell::gates * size,
                          .next_c = static_cast<const T*>(job_.cells) + first * size,
                          .grad_h = grad_h,
                          .grad_output = at(static_cast<const T*>(job_.grad_output), first * size),
                          .grad_next_c = grad_c,
                          .grad_gates = grad_gates,
                          .grad_c = grad_c,
                      });
    const int64_t depth = Cell::gates * size;
    if (rows * depth * size < vendor_work) {
      return multiply(layer_.place, ProductJob<T, V>{
                                        .rows = rows,
                                        .depth = depth,
                                        .columns = size,
                                        .a = grad_gates,
                                        .b = static_cast<const T*>(layer_.weights),
                                        .b_leading_dim = layer_.weights_leading_dim,
                                        .out = grad_h,
                                    });
    }
    const Tensor product =
        mm(matrix(layer_.place, grad_gates, rows, depth, depth, layer_.kind),
           matrix(layer_.place, layer_.weights, depth, size, layer_.weights_leading_dim, layer_.kind));
    const ScalarType sums = compute_dtype(product.scalar_type());
    copy_into(matrix(layer_.place, grad_h, rows, size, size, kind_of(sums)), product);
  }

  const RecurrentBackward& job_;
  const RecurrentLayer& layer_;
};

// What the persistent kernels are told of a sequence; nothing when they can't take it.
std::optional<Sequence> as_sequence(const RecurrentLayer& layer);

// A list of how many chunks of the depth a warp may hold in registers.
template <int... counts>
struct Chunks {
  // f(std::integral_constant<int, n>()) for the first n by which 8 warps cover the depth; false when none does.
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

// Calls f with the kernels' rounding and the lists of chunks for T: LSTM's and LLTM's common sizes are exact, and what
// they hold stays within the registers of a thread.
template <typename Cell, typename T, typename F>
bool with_variant(bool allow_tf32, const F& f) {
  constexpr int g = Cell::gates;
  if constexpr (std::is_same_v<T, float>) {
    const auto run = [&](auto rounding) {
      return f(rounding, Chunks<1, 2, 4, 6, 8>(), Chunks<g, 2 * g, 4 * g, 6 * g, 8 * g>());
    };
    return allow_tf32 ? run(std::integral_constant<Rounding, Rounding::tf32>())
                      : run(std::integral_constant<Rounding, Rounding::none>());
  } else {
    const std::integral_constant<Rounding, Rounding::none> rounding;
    return f(rounding, Chunks<1, 2, 3, 4>(), Chunks<g, 2 * g, 3 * g, 4 * g>());
  }
}

// One cooperative launch, where the device can hold all its blocks at once.
template <typename Job>
bool launch_persistent(Place place, void (*kernel)(Job), Job job, int columns) {
  const Sequence& sequence = job.sequence;
  const int64_t blocks = sequence.hidden_size / block_units;
  const Grid grid{blocks, persistent_threads, sums_bytes(sequence.row_tiles, columns)};
  if (!runs_at_once(place, grid, kernel)) return false;
  const Tensor flags = empty(place, {blocks}, ScalarType::Int);
  clear(place, out_data(flags), static_cast<size_t>(blocks) * sizeof(uint32_t));
  job.sequence.flags = static_cast<uint32_t*>(out_data(flags));
  launch_at_once(place, grid, kernel, job);
  return true;
}

template <typename Cell, typename T>
bool run_persistent(const RecurrentForward& job) {
  const std::optional<Sequence> sequence = as_sequence(job.layer);
  if (!sequence) return false;
  const PersistentForward<T> persistent{
      .sequence = *sequence,
      .weights = static_cast<const T*>(job.layer.weights),
      .leading_dim = job.layer.weights_leading_dim,
      .projection = static_cast<const T*>(job.projection),
      .activated = static_cast<T*>(job.activated),
      .cells = static_cast<T*>(job.cells),
      .output = static_cast<T*>(job.output),
      .h = static_cast<const T*>(job.h),
      .c = static_cast<float*>(job.c),
  };
  return with_variant<Cell, T>(job.layer.allow_tf32, [&](auto rounding, auto list, auto) {
    return decltype(list)::visit(sequence->hidden_size, chunk_depth<T>, [&](auto chunks) {
      const auto kernel = persistent_forward<Cell, T, decltype(rounding)::value, decltype(chunks)::value>;
      return launch_persistent(job.layer.place, kernel, persistent, Cell::gates);
    });
  });
}

template <typename Cell, typename T>
bool run_persistent(const RecurrentBackward& job) {
  const std::optional<Sequence> sequence = as_sequence(job.layer);
  if (!sequence) return false;
  const PersistentBackward<T> persistent{
      .sequence = *sequence,
      .weights = static_cast<const T*>(job.layer.weights),
      .leading_dim = job.layer.weights_leading_dim,
      .activated = static_cast<const T*>(job.activated),
      .cells = static_cast<const T*>(job.cells),
      .grad_output = static_cast<const T*>(job.grad_output),
      .grad_gates = static_cast<T*>(job.grad_gates),
      .grad_h = static_cast<float*>(job.grad_h),
      .grad_c = static_cast<float*>(job.grad_c),
  };
  return with_variant<Cell, T>(job.layer.allow_tf32, [&](auto rounding, auto, auto list) {
    return decltype(list)::visit(Cell::gates * sequence->hidden_size, chunk_depth<T>, [&](auto chunks) {
      const auto kernel = persistent_backward<Cell, T, decltype(rounding)::value, decltype(chunks)::value>;
      return launch_persistent(job.layer.place, kernel, persistent, 1);
    });
  });
}

template <typename Cell>
void run_forward(const RecurrentForward& job) {
  visit_floating(job.layer.kind, [&](auto type) {
    using T = typename decltype(type)::type;
    bool done = false;
    if constexpr (!std::is_same_v<T, double>) done = run_persistent<Cell, T>(job);
    if (!done) PlainForward<Cell, T>(job).run();
    copy_final_h(job, job.layer.hidden_size * static_cast<int64_t>(sizeof(T)));
  });
}

template <typename Cell>
void run_backward(const RecurrentBackward& job) {
  visit_floating(job.layer.kind, [&](auto type) {
    using T = typename decltype(type)::type;
    bool done = false;
    if constexpr (!std::is_same_v<T, double>) done = run_persistent<Cell, T>(job);
    if (!done) PlainBackward<Cell, T>(job).run();
  });
}

}  // namespace fourfold::gpu
