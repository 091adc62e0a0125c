#include "ops/recurrent.h"

#include <algorithm>
#include <cstring>

#include "cpu/parallel.h"

namespace fourfold {
namespace {

constexpr int64_t copy_grain = 32768;  // bytes, per part of a parallel copy

}  // namespace

Tensor concatenate_on_cpu(const Tensor& h, const Tensor& x) {
  const int64_t rows = h.size(0);
  const int64_t h_bytes = h.size(1) * static_cast<int64_t>(h.element_size());
  const int64_t x_bytes = x.size(1) * static_cast<int64_t>(x.element_size());
  Tensor out = empty(place_of(x), {rows, h.size(1) + x.size(1)}, h.scalar_type());
  if (out.numel() == 0) return out;
  char* to = static_cast<char*>(out_data(out));
  const char* from_h = static_cast<const char*>(data_of(h));
  const char* from_x = static_cast<const char*>(data_of(x));
  cpu::parallel(rows, 1 + copy_grain / (h_bytes + x_bytes + 1), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      char* at = to + row * (h_bytes + x_bytes);
      if (h_bytes > 0) std::memcpy(at, from_h + row * h_bytes, static_cast<size_t>(h_bytes));
      if (x_bytes > 0) std::memcpy(at + h_bytes, from_x + row * x_bytes, static_cast<size_t>(x_bytes));
    }
  });
  return out;
}

Tensor previous_h(
    const RecurrentKernels& kernels, const Tensor& output, const Tensor& h_0, const Steps& steps, bool reverse) {
  const Place place = place_of(h_0);
  const int64_t row_bytes = h_0.size(1) * static_cast<int64_t>(h_0.element_size());
  Tensor out = empty(place, {steps.first_row(steps.time), h_0.size(1)}, h_0.scalar_type());
  if (out.numel() == 0) return out;
  char* to = static_cast<char*>(out_data(out));
  const char* outputs = static_cast<const char*>(data_of(output));
  const char* initial = static_cast<const char*>(data_of(h_0));
  const auto copy = [&](int64_t row, const char* from, int64_t rows) {
    if (rows > 0) kernels.copy(place, to + row * row_bytes, from, static_cast<size_t>(rows * row_bytes));
  };
  if (steps.offsets.empty()) {
    const int64_t later = (steps.time - 1) * steps.batch;
    copy(reverse ? 0 : steps.batch, outputs + (reverse ? steps.batch * row_bytes : 0), later);
    copy(reverse ? later : 0, initial, steps.batch);
    return out;
  }
  for (int64_t t = 0; t < steps.time; ++t) {
    const int64_t before = reverse ? t + 1 : t - 1;
    const int64_t rows = steps.rows(t);
    // Rows of the batch that had a step before this one; the others start here.
    const int64_t known = before < 0 || before >= steps.time ? 0 : std::min(rows, steps.rows(before));
    if (known > 0) copy(steps.first_row(t), outputs + steps.first_row(before) * row_bytes, known);
    copy(steps.first_row(t) + known, initial + known * row_bytes, rows - known);
  }
  return out;
}

InputGradients input_gradients(
    Concatenate* concatenate, const Tensor& grad_gates, const Tensor& weights, const OptionalTensor& bias, const Tensor& h, const Tensor& x,
    bool need_x, bool need_weights) {
  const ScalarType dtype = grad_gates.scalar_type();
  const int64_t hidden_size = weights.size(1) - x.size(1);
  const Place place = place_of(grad_gates);
  InputGradients grads{nothing(place, dtype), nothing(place, dtype), nothing(place, dtype)};
  if (need_x) grads.x = mm(grad_gates, narrow(weights, 1, hidden_size, x.size(1)));
  if (!need_weights) return grads;
  if (concatenate != nullptr) {
    grads.weights = mm_transposed(grad_gates, concatenate(h, x));
  } else {
    grads.weights = empty(place, {weights.size(0), weights.size(1)}, dtype);
    mm_transposed_into(narrow(grads.weights, 1, 0, hidden_size), grad_gates, h);
    mm_transposed_into(narrow(grads.weights, 1, hidden_size, x.size(1)), grad_gates, x);
  }
  if (bias) grads.bias = like_bias(sum_rows(grad_gates), *bias);
  return grads;
}

}  // namespace fourfold
