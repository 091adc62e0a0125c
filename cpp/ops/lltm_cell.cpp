#include "ops/lltm_cell.h"

#include "ops/lltm.h"
#include "ops/registration.h"

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

// Which gradients are wanted. weights: of weights and bias, which are computed together.
struct Wanted {
  bool x;
  bool h;
  bool weights;
};

// Gradients that are not wanted have shape (0).
struct InputGradients {
  Tensor x;
  Tensor h;
  Tensor weights;
  Tensor bias;  // (3 * hidden_size)
};

// Runs the job with a kernel that also computes the products of the gates' gradients.
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

LltmCellFactors factors_of(const LltmCellInputs& in) {
  return {in.x.size(1), data_of(in.x), data_of(in.h), data_of(in.weights), data_of(in.bias)};
}

std::tuple<Tensor, Tensor, Tensor> lltm_cell(
    const LltmCellKernels& kernels, const Tensor& x, const Tensor& h, const Tensor& c, const Tensor& weights,
    const OptionalTensor& bias, bool save_for_backward) {
  check_arguments("lltm_cell", x, h, c, weights, bias);
  const ScalarType result = x.scalar_type();
  const ScalarType dtype = kernels.low_precision ? result : compute_dtype(result);
  const auto [next_h, next_c, kept] = kernels.forward(
      {prepared(x, dtype), prepared(h, dtype), prepared(c, dtype), prepared(weights, dtype), flat_bias(bias, dtype)},
      save_for_backward);
  return {convert(next_h, result), convert(next_c, result), kept};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> lltm_cell_backward(
    const LltmCellKernels& kernels, const OptionalTensor& grad_next_h, const OptionalTensor& grad_next_c,
    const Tensor& x, const Tensor& h, const Tensor& c, const Tensor& weights, const OptionalTensor& bias,
    const Tensor& next_c, const Tensor& kept, const std::vector<bool>& output_mask) {
  const char* op = "lltm_cell_backward";
  check_arguments(op, x, h, c, weights, bias);
  expect_mask(op, output_mask, 5);
  const int64_t batch = h.size(0);
  const int64_t hidden_size = h.size(1);
  const ScalarType result = x.scalar_type();
  const ScalarType dtype = kernels.low_precision ? result : compute_dtype(result);
  expect_saved(op, kept, {{"batch", batch}, {"3 * hidden_size", 3 * hidden_size}}, dtype);
  expect_floating(op, "next_c", next_c);
  expect_shape(op, "next_c", next_c, {{"batch", batch}, {"hidden_size", hidden_size}});
  expect_gradient(op, "grad_next_h", grad_next_h, {{"batch", batch}, {"hidden_size", hidden_size}});
  expect_gradient(op, "grad_next_c", grad_next_c, {{"batch", batch}, {"hidden_size", hidden_size}});
  expect_place(
      op, {{"x", &x}, {"next_c", &next_c}, {"kept", &kept}, {"grad_next_h", address(grad_next_h)},
           {"grad_next_c", address(grad_next_c)}});

  const Tensor dense_kept = contiguous(kept);
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
      .kept = data_of(dense_kept),
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

}  // namespace fourfold

FOURFOLD_OPERATORS(m) {
  m.def(
      "lltm_cell(Tensor x, Tensor h, Tensor c, Tensor weights, Tensor? bias=None, bool save_for_backward=True)"
      " -> (Tensor next_h, Tensor next_c, Tensor kept)");
  m.def(
      "lltm_cell_backward(Tensor? grad_next_h, Tensor? grad_next_c, Tensor x, Tensor h, Tensor c, Tensor weights,"
      " Tensor? bias, Tensor next_c, Tensor kept, bool[] output_mask)"
      " -> (Tensor grad_x, Tensor grad_h, Tensor grad_c, Tensor grad_weights, Tensor grad_bias)");
}
