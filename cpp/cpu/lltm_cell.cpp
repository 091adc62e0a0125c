#include "ops/lltm_cell.h"

#include <cstring>

#include "cpu/kernels/lltm_cell.h"
#include "cpu/parallel.h"
#include "ops/backend.h"
#include "ops/registration.h"

namespace fourfold::cpu {
namespace {

constexpr int64_t copy_grain = 32768;  // bytes, per part of a parallel copy

Tensor concatenate(const Tensor& h, const Tensor& x) {
  const int64_t rows = h.size(0);
  const int64_t h_bytes = h.size(1) * static_cast<int64_t>(h.element_size());
  const int64_t x_bytes = x.size(1) * static_cast<int64_t>(x.element_size());
  Tensor out = empty(place_of(x), {rows, h.size(1) + x.size(1)}, h.scalar_type());
  if (out.numel() == 0) return out;
  char* to = static_cast<char*>(out_data(out));
  const char* from_h = static_cast<const char*>(data_of(h));
  const char* from_x = static_cast<const char*>(data_of(x));
  parallel(rows, 1 + copy_grain / (h_bytes + x_bytes + 1), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      char* at = to + row * (h_bytes + x_bytes);
      if (h_bytes > 0) std::memcpy(at, from_h + row * h_bytes, static_cast<size_t>(h_bytes));
      if (x_bytes > 0) std::memcpy(at + h_bytes, from_x + row * x_bytes, static_cast<size_t>(x_bytes));
    }
  });
  return out;
}

// Whether the CPU's kernels compute the products themselves, by the number of multiply-adds. Measured on one thread of
// a Zen 5 against MKL, they take about half its time at batch 16 and 128 units, with AVX-512 and with AVX2; the
// memory-bound backward of one row and 512 units takes a fifth more. They read the weights again for each few rows,
// which is slower than a blocked product once the weights don't fit a cache. Without AVX2 the vendor's library is
// faster except for sizes at which the overhead of its call dominates.
bool multiplies(int64_t batch, int64_t input_size, int64_t hidden_size) {
  const double most = int64_t(1) << (level_index() == 0 ? 14 : 26);
  return static_cast<double>(batch) * static_cast<double>(3 * hidden_size * (hidden_size + input_size)) <= most;
}

LltmCellOutputs forward(const LltmCellInputs& in, bool save_for_backward) {
  const int64_t batch = in.h.size(0);
  const int64_t hidden_size = in.h.size(1);
  const Place place = place_of(in.x);
  const ScalarType dtype = in.x.scalar_type();
  const bool whole = multiplies(batch, in.x.size(1), hidden_size);
  // The kept values overwrite the projection.
  const Tensor kept = !whole              ? linear(concatenate(in.h, in.x), in.weights, in.bias)
                      : save_for_backward ? empty(place, {batch, 3 * hidden_size}, dtype)
                                          : nothing(place, dtype);
  const Tensor next_h = empty(place, {batch, hidden_size}, dtype);
  const Tensor next_c = empty(place, {batch, hidden_size}, dtype);
  if (next_c.numel() == 0) return {next_h, next_c, kept};
  lltm_cell(LltmCellForward{
      .place = place,
      .kind = kind_of(dtype),
      .batch = batch,
      .hidden_size = hidden_size,
      .multiply = whole,
      .projection = whole ? nullptr : data_of(kept),
      .c = data_of(in.c),
      .keep = save_for_backward,
      .kept = save_for_backward ? out_data(kept) : nullptr,
      .next_h = out_data(next_h),
      .next_c = out_data(next_c),
      .factors = factors_of(in),
  });
  return {next_h, next_c, save_for_backward || whole ? kept : nothing(place, dtype)};
}

void backward(const LltmCellBackward& job) { lltm_cell_backward(job); }

constexpr LltmCellKernels kernels{false, forward, backward, concatenate, multiplies};

}  // namespace
}  // namespace fourfold::cpu

FOURFOLD_KERNELS(CPU, m) {
  m.impl("lltm_cell", FOURFOLD_BOX(lltm_cell, cpu::kernels));
  m.impl("lltm_cell_backward", FOURFOLD_BOX(lltm_cell_backward, cpu::kernels));
}
