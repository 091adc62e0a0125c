#include "recurrent.cuh"

#include <limits>

namespace fourfold::gpu {

std::optional<Sequence> as_sequence(const RecurrentLayer& layer) {
  constexpr int64_t most = std::numeric_limits<int>::max();
  // Slots of 16 bytes begin at multiples of 8 values, and a block has 8 units. One step is no sequence.
  const bool fits = layer.batch >= 1 && layer.batch <= most_rows && layer.hidden_size >= block_units &&
                    layer.hidden_size % block_units == 0 && layer.hidden_size <= most && layer.time >= 2 &&
                    layer.time <= most;
  if (!fits || !limits(layer.place).tile_products) return std::nullopt;
  Sequence sequence{
      .time = static_cast<int>(layer.time),
      .batch = static_cast<int>(layer.batch),
      .hidden_size = static_cast<int>(layer.hidden_size),
      .row_tiles = static_cast<int>((layer.batch + row_tile - 1) / row_tile),
      .reverse = layer.reverse,
      .reset = resets_of(layer),
      .rows = first_row(layer, layer.time),
      .lengths = {},
      .flags = nullptr,
  };
  for (int64_t t = layer.time; t-- > 0;) {
    const int64_t ending = t + 1 < layer.time ? active_rows(layer, t + 1) : 0;
    for (int64_t row = ending; row < active_rows(layer, t); ++row) sequence.lengths[row] = static_cast<int>(t + 1);
  }
  return sequence;
}

bool wants_persistent() {
  const Path path = forced_path();
  return path != Path::step && path != Path::vendor;
}

void expect_choice(const RecurrentLayer& layer) {
  if (forced_path() != Path::persistent) return;
  fail("fourfold: expected a layer that one launch can take, as FOURFOLD_GPU_PATH=persistent demands, but got ",
       layer.time, " steps, batch ", layer.batch, " and hidden_size ", layer.hidden_size,
       "; it takes 2 steps or more, a batch of at most ", most_rows, ", a hidden_size that is a multiple of ",
       block_units, ", in 16 or 32 bits, on a GPU that holds all its blocks at once; or unset the variable");
}

Aligned aligned_h_0(const RecurrentForward& job) {
  const RecurrentLayer& layer = job.layer;
  constexpr uintptr_t slot_bytes = 16;
  const void* h_0 = job.h_0;
  if (reinterpret_cast<uintptr_t>(h_0) % slot_bytes == 0) return {h_0, std::nullopt};
  const Tensor own = empty(layer.place, {layer.batch, layer.hidden_size}, dtype_of(layer.kind));
  visit_floating(layer.kind, [&](auto type) {
    using T = typename decltype(type)::type;
    const auto bytes = static_cast<size_t>(layer.batch * layer.hidden_size) * sizeof(T);
    copy(layer.place, out_data(own), h_0, bytes);
  });
  return {data_of(own), own};
}

Tensor empty_state(const RecurrentLayer& layer) {
  return empty(layer.place, {layer.batch, layer.hidden_size}, compute_dtype(dtype_of(layer.kind)));
}

namespace {

int64_t rows_of(const RecurrentLayer& layer) { return first_row(layer, layer.time); }

template <typename T>
void copy_rows(const RecurrentLayer& layer, T* to, const T* from, int64_t rows) {
  const int64_t values = rows * layer.hidden_size;
  if (values > 0) copy(layer.place, to, from, static_cast<size_t>(values) * sizeof(T));
}

// The h that each row of the sequence started from: (rows, hidden_size).
template <typename T>
void previous_h(const RecurrentBackward& job, T* out) {
  const RecurrentLayer& layer = job.layer;
  const int64_t size = layer.hidden_size;
  const T* output = static_cast<const T*>(job.output);
  if (layer.offsets == nullptr && layer.time > 0) {
    const int64_t one = layer.batch * size;
    const int64_t later = rows_of(layer) - layer.batch;
    copy_rows(layer, layer.reverse ? out : out + one, layer.reverse ? output + one : output, later);
    copy_rows(layer, layer.reverse ? out + later * size : out, static_cast<const T*>(job.h_0), layer.batch);
  }
  for (int64_t t = 0; layer.offsets != nullptr && t < layer.time; ++t) {
    const Before<T> before = state_before<T>(layer, t, output, job.h_0);
    T* to = out + first_row(layer, t) * size;
    copy_rows(layer, to, before.step, before.known);
    const int64_t known = before.known * size;
    copy_rows(layer, to + known, before.initial + known, active_rows(layer, t) - before.known);
  }
  if (layer.reset != nullptr) add(layer.place, SumJob<T, T>{rows_of(layer), size, out, nullptr, resets_of(layer), out});
}

}  // namespace

void copy_final_h(const RecurrentForward& job) {
  const RecurrentLayer& layer = job.layer;
  visit_floating(layer.kind, [&](auto type) {
    using T = typename decltype(type)::type;
    T* h_n = static_cast<T*>(job.h_n);
    const T* output = static_cast<const T*>(job.output);
    if (layer.time == 0) return copy_rows(layer, h_n, static_cast<const T*>(job.h_0), layer.batch);
    if (layer.reverse) return copy_rows(layer, h_n, output, layer.batch);
    for (int64_t t = 0; t < layer.time; ++t) {
      const int64_t ending = t + 1 < layer.time ? active_rows(layer, t + 1) : 0;
      const T* from = output + (first_row(layer, t) + ending) * layer.hidden_size;
      copy_rows(layer, h_n + ending * layer.hidden_size, from, active_rows(layer, t) - ending);
    }
  });
}

Tensor input_projection(const RecurrentForward& job, int gates) {
  const RecurrentLayer& layer = job.layer;
  const int64_t columns = gates * layer.hidden_size;
  OptionalTensor bias;
  if (layer.bias_ih != nullptr) {
    bias = view(matrix(layer.place, layer.bias_ih, 1, columns, columns, layer.kind), {columns});
  }
  return linear(
      matrix(layer.place, job.input, rows_of(layer), layer.input_size, layer.input_size, layer.kind),
      matrix(layer.place, layer.weight_ih, columns, layer.input_size, layer.weight_ih_leading_dim, layer.kind), bias);
}

namespace {

// weight_ih (gates * hidden_size, input_size) with its gates in the slots' order, so that one product is enough.
Tensor in_slot_order(const RecurrentLayer& layer, const GradientSlots& slots) {
  const int64_t size = layer.hidden_size;
  const int64_t rows = slots.gates * size;
  const Tensor weights =
      matrix(layer.place, layer.weight_ih, rows, layer.input_size, layer.weight_ih_leading_dim, layer.kind);
  if (slots.input.size() == 1) return weights;
  const Tensor ordered = empty(layer.place, {rows, layer.input_size}, dtype_of(layer.kind));
  for (const GateRun& run : slots.input) {
    copy_into(narrow(ordered, 0, run.slot * size, run.count * size),
              narrow(weights, 0, run.gate * size, run.count * size));
  }
  return ordered;
}

}  // namespace

void finish_gradients(const RecurrentBackward& job, const GradientSlots& slots, const Tensor& grad_gates) {
  const RecurrentLayer& layer = job.layer;
  const int64_t size = layer.hidden_size;
  const int64_t inputs = layer.input_size;
  const int64_t rows = rows_of(layer);
  const int first_hidden = slots.slots - slots.gates;
  const auto gradients = [&](int slot, int count) { return narrow(grad_gates, 1, slot * size, count * size); };
  const auto dense = [&](const void* data) { return matrix(layer.place, data, rows, inputs, inputs, layer.kind); };
  if (job.need_input) {
    mm_into(dense(job.grad_input), gradients(0, slots.gates), in_slot_order(layer, slots));
  }
  if (!job.need_weights) return;
  const Tensor grad_ih =
      matrix(layer.place, job.grad_weight_ih, slots.gates * size, inputs, job.grad_weight_ih_leading_dim, layer.kind);
  for (const GateRun& run : slots.input) {
    mm_transposed_into(
        narrow(grad_ih, 0, run.gate * size, run.count * size), gradients(run.slot, run.count), dense(job.input));
  }
  const Tensor h = empty(layer.place, {rows, size}, dtype_of(layer.kind));
  visit_floating(layer.kind, [&](auto type) {
    previous_h(job, static_cast<typename decltype(type)::type*>(out_data(h)));
  });
  mm_transposed_into(
      matrix(layer.place, job.grad_weight_hh, slots.gates * size, size, job.grad_weight_hh_leading_dim, layer.kind),
      gradients(first_hidden, slots.gates), h);
  if (job.grad_bias_ih == nullptr && job.grad_bias_hh == nullptr) return;
  const Tensor sums = sum_rows(grad_gates);
  visit_floating(layer.kind, [&](auto type) {
    using T = typename decltype(type)::type;
    const auto copy_bias = [&](void* bias, const GateRun& run) {
      const T* from = static_cast<const T*>(data_of(sums)) + run.slot * size;
      if (bias != nullptr) copy_rows(layer, static_cast<T*>(bias) + run.gate * size, from, run.count);
    };
    for (const GateRun& run : slots.input) copy_bias(job.grad_bias_ih, run);
    copy_bias(job.grad_bias_hh, {first_hidden, 0, slots.gates});
  });
}

}  // namespace fourfold::gpu
