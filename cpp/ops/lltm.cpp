#include "cpu/lltm.h"

#include <torch/csrc/stable/library.h>

#include <tuple>

#include "ops/recurrent.h"

namespace fourfold {
namespace {

using Outputs = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>;

// The sizes of one call, checked; packed input is (rows, input_size), otherwise (time, batch, input_size).
struct Layout {
  Steps steps;
  int64_t input_size;
  int64_t hidden_size;

  int64_t batch() const { return steps.batch; }
  int64_t time() const { return steps.time; }
  int64_t rows() const { return steps.first_row(steps.time); }
};

std::vector<int64_t> packed_offsets(const char* op, const Tensor& batch_sizes, int64_t rows, int64_t batch) {
  expect_dtype(op, "batch_sizes", batch_sizes, ScalarType::Long);
  expect_shape(op, "batch_sizes", batch_sizes, {{"time", -1}});
  const Tensor sizes = contiguous(batch_sizes);
  const auto* size = static_cast<const int64_t*>(data_of(sizes));
  std::vector<int64_t> offsets{0};
  for (int64_t t = 0; t < sizes.numel(); ++t) {
    const int64_t most = t == 0 ? batch : size[t - 1];
    if (size[t] < 1 || size[t] > most || (t == 0 && size[t] != batch)) {
      fail(op, ": expected batch_sizes to begin with batch = ", batch, " and never to rise or reach 0, but got ",
           size[t], " at step ", t);
    }
    offsets.push_back(offsets.back() + size[t]);
  }
  if (offsets.back() != rows) {
    fail(op, ": expected batch_sizes to add up to input's ", rows, " rows, but they add up to ", offsets.back());
  }
  return offsets;
}

Layout check_arguments(
    const char* op, const Tensor& input, const Tensor& h_0, const Tensor& c_0, const Tensor& weights,
    const OptionalTensor& bias, const OptionalTensor& batch_sizes) {
  expect_floating(op, "input", input);
  expect_dtype(op, "h_0", h_0, input.scalar_type());
  expect_dtype(op, "c_0", c_0, input.scalar_type());
  expect_dtype(op, "weights", weights, input.scalar_type());
  if (batch_sizes) {
    expect_shape(op, "input", input, {{"rows", -1}, {"input_size", -1}});
  } else {
    expect_shape(op, "input", input, {{"time", -1}, {"batch", -1}, {"input_size", -1}});
  }
  Layout layout;
  layout.input_size = input.size(input.dim() - 1);
  expect_shape(op, "h_0", h_0, {{"batch", batch_sizes ? -1 : input.size(1)}, {"hidden_size", -1}});
  layout.steps.batch = h_0.size(0);
  layout.hidden_size = h_0.size(1);
  expect_shape(op, "c_0", c_0, {{"batch", layout.batch()}, {"hidden_size", layout.hidden_size}});
  expect_shape(
      op, "weights", weights,
      {{"3 * hidden_size", 3 * layout.hidden_size},
       {"hidden_size + input_size", layout.hidden_size + layout.input_size}});
  if (bias) {
    expect_dtype(op, "bias", *bias, input.scalar_type());
    expect_bias(op, "bias", *bias, {"3 * hidden_size", 3 * layout.hidden_size});
  }
  layout.steps.time = input.size(0);
  if (batch_sizes) {
    layout.steps.offsets = packed_offsets(op, *batch_sizes, input.size(0), layout.batch());
    layout.steps.time = batch_sizes->numel();
  }
  return layout;
}

Tensor as_rows(const Tensor& x, const Layout& layout, ScalarType dtype) {
  const Tensor dense = prepared(x, dtype);
  return dense.dim() == 2 ? dense : view(dense, {layout.rows(), x.size(x.dim() - 1)});
}

cpu::RecurrentLayer layer_of(const Layout& layout, const Tensor& weights, bool reverse) {
  return {
      .kind = kind_of(weights.scalar_type()),
      .time = layout.time(),
      .batch = layout.batch(),
      .hidden_size = layout.hidden_size,
      .reverse = reverse,
      .offsets = layout.steps.offsets.empty() ? nullptr : layout.steps.offsets.data(),
      .weights = data_of(weights),
      .weights_leading_dim = layout.hidden_size + layout.input_size,
  };
}

Tensor empty_output(const Layout& layout, bool packed, int64_t size, ScalarType dtype) {
  return packed ? empty({layout.rows(), size}, dtype) : empty({layout.time(), layout.batch(), size}, dtype);
}

Outputs lltm(
    const Tensor& input, const Tensor& h_0, const Tensor& c_0, const Tensor& weights, const OptionalTensor& bias,
    bool reverse, const OptionalTensor& batch_sizes, bool save_for_backward) {
  const Layout layout = check_arguments("lltm", input, h_0, c_0, weights, bias, batch_sizes);
  const ScalarType dtype = compute_dtype(input.scalar_type());
  const Tensor w = prepared(weights, dtype);
  // The input projection of all steps is one product; the loop is left with the recurrent part.
  const Tensor gates = linear(
      as_rows(input, layout, dtype), narrow(w, 1, layout.hidden_size, layout.input_size), flat_bias(bias, dtype));
  Tensor output = empty_output(layout, batch_sizes.has_value(), layout.hidden_size, dtype);
  Tensor cells = save_for_backward ? empty({layout.rows(), layout.hidden_size}, dtype) : nothing(dtype);
  Tensor h = clone(convert(h_0, dtype));
  Tensor c = clone(convert(c_0, dtype));
  cpu::lltm(cpu::RecurrentForward{
      .layer = layer_of(layout, w, reverse),
      .projection = data_of(gates),
      .activated = save_for_backward ? out_data(gates) : nullptr,
      .cells = save_for_backward ? out_data(cells) : nullptr,
      .output = out_data(output),
      .h = out_data(h),
      .c = out_data(c),
  });
  const ScalarType result = input.scalar_type();
  return {convert(output, result), convert(h, result), convert(c, result),
          save_for_backward ? gates : nothing(dtype), cells};
}

Tensor initial_gradient(const OptionalTensor& grad, const Layout& layout, ScalarType dtype) {
  if (grad) return clone(convert(*grad, dtype));
  return zeros({layout.batch(), layout.hidden_size}, dtype);
}

Outputs lltm_backward(
    const OptionalTensor& grad_output, const OptionalTensor& grad_h_n, const OptionalTensor& grad_c_n,
    const Tensor& input, const Tensor& h_0, const Tensor& c_0, const Tensor& weights, const OptionalTensor& bias,
    bool reverse, const OptionalTensor& batch_sizes, const Tensor& output, const Tensor& gates, const Tensor& cells,
    bool need_input, bool need_weights) {
  const char* op = "lltm_backward";
  const Layout layout = check_arguments(op, input, h_0, c_0, weights, bias, batch_sizes);
  const ScalarType dtype = compute_dtype(input.scalar_type());
  const Dimension rows{"rows", layout.rows()};
  const Dimension batch{"batch", layout.batch()};
  const Dimension hidden{"hidden_size", layout.hidden_size};
  expect_saved(op, gates, {rows, {"3 * hidden_size", 3 * layout.hidden_size}}, dtype);
  expect_saved(op, cells, {rows, hidden}, dtype);
  expect_gradient(op, "grad_h_n", grad_h_n, {batch, hidden});
  expect_gradient(op, "grad_c_n", grad_c_n, {batch, hidden});
  expect_floating(op, "output", output);
  if (batch_sizes) {
    expect_shape(op, "output", output, {rows, hidden});
    expect_gradient(op, "grad_output", grad_output, {rows, hidden});
  } else {
    expect_shape(op, "output", output, {{"time", layout.time()}, batch, hidden});
    expect_gradient(op, "grad_output", grad_output, {{"time", layout.time()}, batch, hidden});
  }

  const Tensor w = prepared(weights, dtype);
  const Tensor activated = contiguous(gates);
  const Tensor saved_cells = contiguous(cells);
  const OptionalTensor grad = prepared(grad_output, dtype);
  Tensor grad_gates = empty({layout.rows(), 3 * layout.hidden_size}, dtype);
  Tensor grad_h = initial_gradient(grad_h_n, layout, dtype);
  Tensor grad_c = initial_gradient(grad_c_n, layout, dtype);
  cpu::lltm_backward(cpu::RecurrentBackward{
      .layer = layer_of(layout, w, reverse),
      .activated = data_of(activated),
      .cells = data_of(saved_cells),
      .grad_output = data_of(grad),
      .grad_gates = out_data(grad_gates),
      .grad_h = out_data(grad_h),
      .grad_c = out_data(grad_c),
  });

  const Tensor h = need_weights ? previous_h(as_rows(output, layout, dtype), prepared(h_0, dtype), layout.steps, reverse)
                                : prepared(h_0, dtype);
  const InputGradients rest =
      input_gradients(grad_gates, w, bias, h, as_rows(input, layout, dtype), need_input, need_weights);
  const ScalarType result = input.scalar_type();
  Tensor grad_input = convert(rest.x, result);
  if (need_input && !batch_sizes) grad_input = view(grad_input, {layout.time(), layout.batch(), layout.input_size});
  return {grad_input, convert(grad_h, result), convert(grad_c, result), convert(rest.weights, result),
          convert(rest.bias, result)};
}

}  // namespace
}  // namespace fourfold

STABLE_TORCH_LIBRARY_FRAGMENT(fourfold, m) {
  m.def(
      "lltm(Tensor input, Tensor h_0, Tensor c_0, Tensor weights, Tensor? bias=None, bool reverse=False,"
      " Tensor? batch_sizes=None, bool save_for_backward=True)"
      " -> (Tensor output, Tensor h_n, Tensor c_n, Tensor gates, Tensor cells)");
  m.def(
      "lltm_backward(Tensor? grad_output, Tensor? grad_h_n, Tensor? grad_c_n, Tensor input, Tensor h_0, Tensor c_0,"
      " Tensor weights, Tensor? bias, bool reverse, Tensor? batch_sizes, Tensor output, Tensor gates, Tensor cells,"
      " bool need_input=True, bool need_weights=True)"
      " -> (Tensor grad_input, Tensor grad_h_0, Tensor grad_c_0, Tensor grad_weights, Tensor grad_bias)");
}

STABLE_TORCH_LIBRARY_IMPL(fourfold, CPU, m) {
  m.impl("lltm", TORCH_BOX(&fourfold::lltm));
  m.impl("lltm_backward", TORCH_BOX(&fourfold::lltm_backward));
}
