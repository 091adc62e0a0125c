#include "ops/lltm_cell.h"

#include <torch/csrc/stable/library.h>

#include <cstring>

#include "cpu/lltm_cell.h"
#include "cpu/parallel.h"
#include "ops/backend.h"
#include "ops/lltm.h"

namespace fourfold {
namespace {

void check_arguments(const char* op, const Tensor& x, const Tensor& h, const Tensor& c, const Tensor& weights,
                     const OptionalTensor& bias) {
  expect_floating(op, "x", x);
  expect_dtype(op, "h", h, x.scalar_type());
  expect_dtype(op, "c", c, x.scalar_type());
  expect_shape(op, "x", x, {{"batch", -1}, {"input_size", -1}});
  expect_shape(op, "h", h, {{"batch", x.size(0)}, {"hidden_size", -1}});
  const int64_t hidden_size = h.size(1);
  expect_shape(op, "c", c, {{"batch", x.size(0)}, {"hidden_size", hidden_size}});
  expect_countable(op, "x", {x.size(0), x.size(1)});
  expect_countable(op, "h", {x.size(0), hidden_size});
  check_lltm_parameters(op, x.scalar_type(), x.size(1), hidden_size, weights, bias);
  expect_place(op, {{"x", &x}, {"h", &h}, {"c", &c}, {"weights", &weights}, {"bias", address(bias)}});
}

LltmCellFactors factors_of(const LltmCellInputs& in) {
  return {in.x.size(1), data_of(in.x), data_of(in.h), data_of(in.weights), data_of(in.bias)};
}

constexpr int64_t copy_grain = 32768;  // bytes, per part of a parallel copy

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

// weights: those of the parameters, which come of one sum.
struct Wanted {
  bool x;
  bool h;
  bool weights;
};

// Shape (0) for each that is not wanted.
struct InputGradients {
  Tensor x;
  Tensor h;
  Tensor weights;
  Tensor bias;  // of bias's own shape
};

// The job's with all that the kernel is to make beside the gates' gradients.
InputGradients whole_backward(
    const LltmCellKernels& kernels, LltmCellBackward job, const LltmCellInputs& in, ScalarType dtype,
    const Wanted& wanted) {
  const Place place = job.place;
  const int64_t input_size = in.x.size(1);
  const auto make = [&](bool needed, int64_t rows, int64_t columns) {
    return needed ? empty(place, {rows, columns}, dtype) : nothing(place, dtype);
  };
  InputGradients grads{
      make(wanted.x, job.batch, input_size), make(wanted.h, job.batch, job.hidden_size),
      make(wanted.weights, in.weights.size(0), in.weights.size(1)),
      empty(place, {wanted.weights && in.bias ? in.weights.size(0) : 0}, dtype)};
  if (job.hidden_size == 0 && grads.x.numel() == 0) return grads;
  job.multiply = true;
  job.factors = factors_of(in);
  job.need_x = wanted.x;
  job.need_h = wanted.h;
  job.need_weights = wanted.weights;
  job.grad_x = out_data(grads.x);
  job.grad_previous_h = out_data(grads.h);
  job.grad_weights = out_data(grads.weights);
  job.grad_bias = in.bias ? out_data(grads.bias) : nullptr;
  kernels.backward(job);
  return grads;
}

InputGradients backward_and_products(
    const LltmCellKernels& kernels, LltmCellBackward job, const LltmCellInputs& in, ScalarType dtype,
    const Wanted& wanted) {
  const int64_t hidden_size = job.hidden_size;
  const int64_t input_size = in.x.size(1);
  const Place place = job.place;
  const Tensor grad_gates = empty(place, {job.batch, 3 * hidden_size}, dtype);
  job.grad_gates = out_data(grad_gates);
  kernels.backward(job);
  InputGradients grads{nothing(place, dtype), nothing(place, dtype), nothing(place, dtype), nothing(place, dtype)};
  if (wanted.h) grads.h = mm(grad_gates, narrow(in.weights, 1, 0, hidden_size));
  if (wanted.x) grads.x = mm(grad_gates, narrow(in.weights, 1, hidden_size, input_size));
  if (!wanted.weights) return grads;
  if (kernels.concatenate != nullptr) {
    grads.weights = mm_transposed(grad_gates, kernels.concatenate(in.h, in.x));
  } else {
    grads.weights = empty(place, {in.weights.size(0), in.weights.size(1)}, dtype);
    mm_transposed_into(narrow(grads.weights, 1, 0, hidden_size), grad_gates, in.h);
    mm_transposed_into(narrow(grads.weights, 1, hidden_size, input_size), grad_gates, in.x);
  }
  if (in.bias) grads.bias = sum_rows(grad_gates);
  return grads;
}

}  // namespace

std::tuple<Tensor, Tensor, Tensor> lltm_cell(
    const LltmCellKernels& kernels, const Tensor& x, const Tensor& h, const Tensor& c, const Tensor& weights,
    const OptionalTensor& bias, bool save_for_backward) {
  check_arguments("lltm_cell", x, h, c, weights, bias);
  const ScalarType result = x.scalar_type();
  const ScalarType dtype = kernels.low_precision ? result : compute_dtype(result);
  const auto [next_h, next_c, activated] = kernels.forward(
      {prepared(x, dtype), prepared(h, dtype), prepared(c, dtype), prepared(weights, dtype), flat_bias(bias, dtype)},
      save_for_backward);
  return {convert(next_h, result), convert(next_c, result), activated};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> lltm_cell_backward(
    const LltmCellKernels& kernels, const OptionalTensor& grad_next_h, const OptionalTensor& grad_next_c,
    const Tensor& x, const Tensor& h, const Tensor& c, const Tensor& weights, const OptionalTensor& bias,
    const Tensor& next_c, const Tensor& gates, const std::vector<bool>& output_mask) {
  const char* op = "lltm_cell_backward";
  check_arguments(op, x, h, c, weights, bias);
  expect_mask(op, output_mask, 5);
  const int64_t batch = h.size(0);
  const int64_t hidden_size = h.size(1);
  const ScalarType result = x.scalar_type();
  const ScalarType dtype = kernels.low_precision ? result : compute_dtype(result);
  expect_saved(op, gates, {{"batch", batch}, {"3 * hidden_size", 3 * hidden_size}}, dtype);
  expect_floating(op, "next_c", next_c);
  expect_shape(op, "next_c", next_c, {{"batch", batch}, {"hidden_size", hidden_size}});
  expect_gradient(op, "grad_next_h", grad_next_h, {{"batch", batch}, {"hidden_size", hidden_size}});
  expect_gradient(op, "grad_next_c", grad_next_c, {{"batch", batch}, {"hidden_size", hidden_size}});
  expect_place(
      op, {{"x", &x}, {"next_c", &next_c}, {"gates", &gates}, {"grad_next_h", address(grad_next_h)},
           {"grad_next_c", address(grad_next_c)}});

  const Tensor activated = contiguous(gates);
  const Tensor cells = prepared(next_c, dtype);
  const OptionalTensor grad_h = prepared(grad_next_h, dtype);
  const OptionalTensor grad_c = prepared(grad_next_c, dtype);
  const LltmCellInputs in{
      prepared(x, dtype), prepared(h, dtype), c, prepared(weights, dtype), flat_bias(bias, dtype)};
  const Place place = place_of(x);
  const Tensor grad_state = empty(place, {batch, hidden_size}, dtype);
  const LltmCellBackward job{
      .place = place,
      .kind = kind_of(dtype),
      .batch = batch,
      .hidden_size = hidden_size,
      .activated = data_of(activated),
      .next_c = data_of(cells),
      .grad_h = data_of(grad_h),
      .grad_next_c = data_of(grad_c),
      .grad_c = out_data(grad_state),
  };
  const bool whole = kernels.multiplies != nullptr && kernels.multiplies(batch, x.size(1), hidden_size);
  const auto run = whole ? whole_backward : backward_and_products;
  const auto [grad_x, grad_previous_h, grad_weights, grad_bias] =
      run(kernels, job, in, dtype, {output_mask[0], output_mask[1], output_mask[3] || output_mask[4]});
  return {returned(output_mask[0], grad_x, x), returned(output_mask[1], grad_previous_h, x),
          returned(output_mask[2], grad_state, x), returned(output_mask[3], grad_weights, x),
          returned(output_mask[4], grad_bias, x, bias)};
}

namespace {

// Whether the CPU's kernels make the products themselves: up to so many multiply-adds. Measured on one thread of a
// Zen 5 against MKL, they take about half its time at batch 16 and 128 units, with AVX-512 and with AVX2; the backward of
// one row and 512 units, which only memory bounds, takes a fifth more. They read the weights anew for each few rows,
// which loses to a blocked product once nothing fits a cache. Without AVX2 the vendor's library is faster as soon as its
// call is paid for.
bool multiplies_on_cpu(int64_t batch, int64_t input_size, int64_t hidden_size) {
  const double most = int64_t(1) << (cpu::level_index() == 0 ? 14 : 26);
  return static_cast<double>(batch) * static_cast<double>(3 * hidden_size * (hidden_size + input_size)) <= most;
}

LltmCellOutputs forward_on_cpu(const LltmCellInputs& in, bool save_for_backward) {
  const int64_t batch = in.h.size(0);
  const int64_t hidden_size = in.h.size(1);
  const Place place = place_of(in.x);
  const ScalarType dtype = in.x.scalar_type();
  const bool whole = multiplies_on_cpu(batch, in.x.size(1), hidden_size);
  const Tensor gates = !whole              ? linear(concatenate_on_cpu(in.h, in.x), in.weights, in.bias)
                       : save_for_backward ? empty(place, {batch, 3 * hidden_size}, dtype)
                                           : nothing(place, dtype);
  const Tensor next_h = empty(place, {batch, hidden_size}, dtype);
  const Tensor next_c = empty(place, {batch, hidden_size}, dtype);
  if (next_c.numel() == 0) return {next_h, next_c, gates};
  cpu::lltm_cell(LltmCellForward{
      .place = place,
      .kind = kind_of(dtype),
      .batch = batch,
      .hidden_size = hidden_size,
      .multiply = whole,
      .projection = whole ? nullptr : data_of(gates),
      .c = data_of(in.c),
      .keep = save_for_backward,
      .activated = save_for_backward ? out_data(gates) : nullptr,
      .next_h = out_data(next_h),
      .next_c = out_data(next_c),
      .factors = factors_of(in),
  });
  return {next_h, next_c, save_for_backward || whole ? gates : nothing(place, dtype)};
}

void backward_on_cpu(const LltmCellBackward& job) { cpu::lltm_cell_backward(job); }

constexpr LltmCellKernels cpu_kernels{
    false, forward_on_cpu, backward_on_cpu, concatenate_on_cpu, multiplies_on_cpu};

}  // namespace
}  // namespace fourfold

STABLE_TORCH_LIBRARY_FRAGMENT(fourfold, m) {
  m.def(
      "lltm_cell(Tensor x, Tensor h, Tensor c, Tensor weights, Tensor? bias=None, bool save_for_backward=True)"
      " -> (Tensor next_h, Tensor next_c, Tensor gates)");
  m.def(
      "lltm_cell_backward(Tensor? grad_next_h, Tensor? grad_next_c, Tensor x, Tensor h, Tensor c, Tensor weights,"
      " Tensor? bias, Tensor next_c, Tensor gates, bool[] output_mask)"
      " -> (Tensor grad_x, Tensor grad_h, Tensor grad_c, Tensor grad_weights, Tensor grad_bias)");
}

STABLE_TORCH_LIBRARY_IMPL(fourfold, CPU, m) {
  m.impl("lltm_cell", FOURFOLD_BOX(lltm_cell, cpu_kernels));
  m.impl("lltm_cell_backward", FOURFOLD_BOX(lltm_cell_backward, cpu_kernels));
}
