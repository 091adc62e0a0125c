#include "cpu/lltm_cell.h"

#include <torch/csrc/stable/library.h>

#include <tuple>

#include "ops/recurrent.h"

namespace fourfold {
namespace {

using Gradients = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>;

void check_arguments(const char* op, const Tensor& x, const Tensor& h, const Tensor& c, const Tensor& weights,
                     const OptionalTensor& bias) {
  expect_floating(op, "x", x);
  expect_dtype(op, "h", h, x.scalar_type());
  expect_dtype(op, "c", c, x.scalar_type());
  expect_dtype(op, "weights", weights, x.scalar_type());
  expect_shape(op, "x", x, {{"batch", -1}, {"input_size", -1}});
  expect_shape(op, "h", h, {{"batch", x.size(0)}, {"hidden_size", -1}});
  const int64_t hidden_size = h.size(1);
  expect_shape(op, "c", c, {{"batch", x.size(0)}, {"hidden_size", hidden_size}});
  expect_shape(
      op, "weights", weights,
      {{"3 * hidden_size", 3 * hidden_size}, {"hidden_size + input_size", hidden_size + x.size(1)}});
  if (bias) {
    expect_dtype(op, "bias", *bias, x.scalar_type());
    expect_bias(op, "bias", *bias, {"3 * hidden_size", 3 * hidden_size});
  }
}

std::tuple<Tensor, Tensor, Tensor> lltm_cell(
    const Tensor& x, const Tensor& h, const Tensor& c, const Tensor& weights, const OptionalTensor& bias,
    bool save_for_backward) {
  check_arguments("lltm_cell", x, h, c, weights, bias);
  const ScalarType dtype = compute_dtype(x.scalar_type());
  const Tensor gates = linear(
      concatenate(prepared(h, dtype), prepared(x, dtype)), prepared(weights, dtype), flat_bias(bias, dtype));
  const Tensor state = prepared(c, dtype);
  Tensor next_h = empty({h.size(0), h.size(1)}, dtype);
  Tensor next_c = empty({h.size(0), h.size(1)}, dtype);
  cpu::lltm_cell(cpu::LltmCellForward{
      .kind = kind_of(dtype),
      .batch = h.size(0),
      .hidden_size = h.size(1),
      .projection = data_of(gates),
      .c = data_of(state),
      .activated = save_for_backward ? out_data(gates) : nullptr,
      .next_h = out_data(next_h),
      .next_c = out_data(next_c),
  });
  return {convert(next_h, x.scalar_type()), convert(next_c, x.scalar_type()),
          save_for_backward ? gates : nothing(dtype)};
}

Gradients lltm_cell_backward(
    const OptionalTensor& grad_next_h, const OptionalTensor& grad_next_c, const Tensor& x, const Tensor& h,
    const Tensor& c, const Tensor& weights, const OptionalTensor& bias, const Tensor& next_c, const Tensor& gates,
    bool need_x, bool need_h, bool need_weights) {
  const char* op = "lltm_cell_backward";
  check_arguments(op, x, h, c, weights, bias);
  const int64_t batch = h.size(0);
  const int64_t hidden_size = h.size(1);
  const ScalarType dtype = compute_dtype(x.scalar_type());
  expect_saved(op, gates, {{"batch", batch}, {"3 * hidden_size", 3 * hidden_size}}, dtype);
  expect_floating(op, "next_c", next_c);
  expect_shape(op, "next_c", next_c, {{"batch", batch}, {"hidden_size", hidden_size}});
  expect_gradient(op, "grad_next_h", grad_next_h, {{"batch", batch}, {"hidden_size", hidden_size}});
  expect_gradient(op, "grad_next_c", grad_next_c, {{"batch", batch}, {"hidden_size", hidden_size}});

  const Tensor activated = contiguous(gates);
  const Tensor cells = prepared(next_c, dtype);
  const OptionalTensor grad_h = prepared(grad_next_h, dtype);
  const OptionalTensor grad_c = prepared(grad_next_c, dtype);
  Tensor grad_gates = empty({batch, 3 * hidden_size}, dtype);
  Tensor grad_state = empty({batch, hidden_size}, dtype);
  cpu::lltm_cell_backward(cpu::LltmCellBackward{
      .kind = kind_of(dtype),
      .batch = batch,
      .hidden_size = hidden_size,
      .activated = data_of(activated),
      .next_c = data_of(cells),
      .grad_h = data_of(grad_h),
      .grad_next_c = data_of(grad_c),
      .grad_gates = out_data(grad_gates),
      .grad_c = out_data(grad_state),
  });

  const Tensor w = prepared(weights, dtype);
  const Tensor grad_previous_h = need_h ? mm(grad_gates, narrow(w, 1, 0, hidden_size)) : nothing(dtype);
  const InputGradients rest =
      input_gradients(grad_gates, w, bias, prepared(h, dtype), prepared(x, dtype), need_x, need_weights);
  const ScalarType result = x.scalar_type();
  return {convert(rest.x, result), convert(grad_previous_h, result), convert(grad_state, result),
          convert(rest.weights, result), convert(rest.bias, result)};
}

}  // namespace
}  // namespace fourfold

STABLE_TORCH_LIBRARY_FRAGMENT(fourfold, m) {
  m.def(
      "lltm_cell(Tensor x, Tensor h, Tensor c, Tensor weights, Tensor? bias=None, bool save_for_backward=True)"
      " -> (Tensor next_h, Tensor next_c, Tensor gates)");
  m.def(
      "lltm_cell_backward(Tensor? grad_next_h, Tensor? grad_next_c, Tensor x, Tensor h, Tensor c, Tensor weights,"
      " Tensor? bias, Tensor next_c, Tensor gates, bool need_x=True, bool need_h=True,"
      " bool need_weights=True)"
      " -> (Tensor grad_x, Tensor grad_h, Tensor grad_c, Tensor grad_weights, Tensor grad_bias)");
}

STABLE_TORCH_LIBRARY_IMPL(fourfold, CPU, m) {
  m.impl("lltm_cell", TORCH_BOX(&fourfold::lltm_cell));
  m.impl("lltm_cell_backward", TORCH_BOX(&fourfold::lltm_cell_backward));
}
