// Whole sequences of a recurrent layer in one launch or two: the layer as a job of the kernels in one_block.cuh or
// persistent.cuh, and the choice of a kernel for its size.
#pragma once

#include <optional>

#include "one_block.cuh"
#include "ops/aten.h"
#include "ops/recurrent_job.h"
#include "persistent.cuh"

namespace fourfold::gpu {

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

}  // namespace fourfold::gpu
