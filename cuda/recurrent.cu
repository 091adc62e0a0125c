#include "recurrent.cuh"

#include <algorithm>
#include <limits>

namespace fourfold::gpu {

namespace {

Sequence sequence_of(const RecurrentLayer& layer) {
  Sequence sequence{
      .time = static_cast<int>(layer.time),
      .batch = static_cast<int>(layer.batch),
      .hidden_size = static_cast<int>(layer.hidden_size),
      .padded_size = static_cast<int>(padded_size(layer)),
      .row_tiles = static_cast<int>((std::min<int64_t>(layer.batch, most_rows) + row_tile - 1) / row_tile),
      .reverse = layer.reverse,
      .has_two_sums = false,
      .is_packed = layer.offsets != nullptr,
      .reset = resets_of(layer),
      .rows = first_row(layer, layer.time),
      .first_row = 0,
      .other_rows = 0,
      .lengths = {},
  };
  if (!sequence.is_packed) std::fill_n(sequence.lengths, most_batch, sequence.time);
  for (int64_t t = layer.time; sequence.is_packed && t-- > 0;) {
    const int64_t ending = t + 1 < layer.time ? active_rows(layer, t + 1) : 0;
    for (int64_t row = ending; row < active_rows(layer, t); ++row) sequence.lengths[row] = static_cast<int>(t + 1);
  }
  return sequence;
}

bool fits_ints(const RecurrentLayer& layer) {
  constexpr int64_t most = std::numeric_limits<int>::max();
  return padded_size(layer) <= most && layer.time <= most && layer.batch <= most;
}

}  // namespace

std::optional<Sequence> as_sequence(const RecurrentLayer& layer) {
  // A single step is not worth it.
  const int64_t most_rows_of_all = most_batch * (layer.offsets == nullptr ? most_launches : 1);
  const bool fits = layer.batch >= 1 && layer.batch <= most_rows_of_all && layer.hidden_size >= 1 && layer.time >= 2 &&
                    (layer.hidden_size % block_units == 0 || layer.hidden_size <= most_padded_size);
  if (!fits || !fits_ints(layer) || !limits(layer.place).tile_products) return std::nullopt;
  return sequence_of(layer);
}

std::optional<Sequence> as_block_sequence(const RecurrentLayer& layer, int gates) {
  const bool fits = layer.batch >= 1 && (layer.offsets == nullptr || layer.batch <= most_batch) && layer.hidden_size >= 1 &&
                    layer.hidden_size <= most_block_size(gates) && layer.time >= 1;
  if (!fits || !fits_ints(layer)) return std::nullopt;
  // Each block loads all weights, which few steps of blocks that wait for each other aren't worth.
  const bool is_one_wave = layer.batch <= int64_t(rows_of_block) * limits(layer.place).multiprocessors;
  if (!is_one_wave && layer.time < fewest_block_steps && forced_path() != Path::block) return std::nullopt;
  return sequence_of(layer);
}

bool wants(Path wanted) {
  const Path path = forced_path();
  return path == wanted || path == Path::chosen || path == Path::fused;
}

void expect_choice(const RecurrentLayer& layer) {
  if (forced_path() == Path::block) {
    fail("fourfold: expected a layer that one block computes, because FOURFOLD_GPU_PATH=block is set, but got ",
         layer.time, " steps, batch ", layer.batch, " and hidden_size ", layer.hidden_size,
         "; that needs 1 step or more, 16 or 32 bits, and a hidden_size of at most ", most_block_size(Gru::gates), ", or ",
         most_block_size(Lstm::gates), " in an LSTM, and of a packed sequence a batch of at most ", most_batch, "; otherwise unset the variable");
  }
  if (forced_path() != Path::persistent) return;
  fail("fourfold: expected a layer that runs in one or two launches, because FOURFOLD_GPU_PATH=persistent is set, but got ",
       layer.time, " steps, batch ", layer.batch, " and hidden_size ", layer.hidden_size,
       "; that needs 2 steps or more, 16 or 32 bits, a hidden_size that is a multiple of ", block_units, " or at most ",
       most_padded_size, ", and a GPU that holds hidden_size / ", block_units, " blocks for each ", most_rows,
       " rows at once, for all rows of a packed sequence or half of the others, at most ", most_batch,
       "; otherwise unset the variable");
}

// to (rows, to_columns) = from (rows, from_columns), with zeros in the additional columns. Bits: an integer of the
// values' size.
template <typename Bits>
__global__ void __launch_bounds__(step_threads)
    pad_kernel(int64_t rows, int64_t to_columns, int64_t from_columns, Bits* to, const Bits* from) {
  const int64_t at = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
  if (at >= rows * to_columns) return;
  const int64_t row = at / to_columns, column = at % to_columns;
  to[at] = column < from_columns ? from[row * from_columns + column] : Bits(0);
}

Aligned aligned_h_0(const RecurrentForward& job) {
  const RecurrentLayer& layer = job.layer;
  constexpr uintptr_t slot_bytes = 16;
  const void* h_0 = job.h_0;
  const int64_t padded = padded_size(layer);
  if (padded == layer.hidden_size && reinterpret_cast<uintptr_t>(h_0) % slot_bytes == 0) return {h_0, std::nullopt};
  const Tensor own = empty(layer.place, {layer.batch, padded}, dtype_of(layer.kind));
  const auto pad = [&](auto type) {
    using Bits = typename decltype(type)::type;
    launch(layer.place, {unit_blocks(layer.batch, padded), step_threads}, pad_kernel<Bits>, layer.batch, padded,
           layer.hidden_size, static_cast<Bits*>(out_data(own)), static_cast<const Bits*>(h_0));
  };
  layer.kind == Kind::float32 ? pad(Type<uint32_t>()) : pad(Type<uint16_t>());
  return {data_of(own), own};
}

PassedOn passed_on(const RecurrentLayer& layer, int values, void* result) {
  const int64_t padded = padded_size(layer);
  if (padded == layer.hidden_size) return {result, std::nullopt};
  const Tensor own = empty(layer.place, {first_row(layer, layer.time), values * padded}, dtype_of(layer.kind));
  return {out_data(own), own};
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

template <typename T>
void copy_previous_h(const RecurrentBackward& job, T* out) {
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

Tensor previous_h(const RecurrentBackward& job) {
  const RecurrentLayer& layer = job.layer;
  const Tensor h = empty(layer.place, {rows_of(layer), layer.hidden_size}, dtype_of(layer.kind));
  visit_floating(layer.kind, [&](auto type) {
    copy_previous_h(job, static_cast<typename decltype(type)::type*>(out_data(h)));
  });
  return h;
}

}  // namespace fourfold::gpu
