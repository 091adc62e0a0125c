#include "ops/lltm.h"

#include <torch/csrc/stable/library.h>

#include <cstring>

#include "cpu/lltm.h"
#include "ops/backend.h"

namespace fourfold {
namespace {

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
  if (batch_sizes.device().type() != torch::headeronly::DeviceType::CPU) {
    fail(op, ": expected batch_sizes to be on the CPU, as torch.nn.utils.rnn keeps them; move it with .to('cpu')");
  }
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
  expect_place(
      op, {{"input", &input}, {"h_0", &h_0}, {"c_0", &c_0}, {"weights", &weights}, {"bias", address(bias)}});
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

RecurrentLayer layer_of(const Layout& layout, const Tensor& weights, bool reverse, bool allow_tf32) {
  return {
      .place = place_of(weights),
      .kind = kind_of(weights.scalar_type()),
      .time = layout.time(),
      .batch = layout.batch(),
      .hidden_size = layout.hidden_size,
      .reverse = reverse,
      .allow_tf32 = allow_tf32,
      .offsets = layout.steps.offsets.empty() ? nullptr : layout.steps.offsets.data(),
      .weights = data_of(weights),
      .weights_leading_dim = layout.hidden_size + layout.input_size,
  };
}

ScalarType dtype_of(const RecurrentKernels& kernels, const Tensor& input) {
  return kernels.low_precision ? input.scalar_type() : compute_dtype(input.scalar_type());
}

}  // namespace

RecurrentOutputs lltm(
    const RecurrentKernels& kernels, const Tensor& input, const Tensor& h_0, const Tensor& c_0, const Tensor& weights,
    const OptionalTensor& bias, bool reverse, const OptionalTensor& batch_sizes, bool save_for_backward,
    bool allow_tf32) {
  const Layout layout = check_arguments("lltm", input, h_0, c_0, weights, bias, batch_sizes);
  const Place place = place_of(input);
  const ScalarType dtype = dtype_of(kernels, input);
  const Tensor w = prepared(weights, dtype);
  // The input projection of all steps is one product; the loop is left with the recurrent part.
  const Tensor gates = linear(
      as_rows(input, layout, dtype), narrow(w, 1, layout.hidden_size, layout.input_size), flat_bias(bias, dtype));
  const Sizes packed_shape{layout.rows(), layout.hidden_size};
  const Sizes shape{layout.time(), layout.batch(), layout.hidden_size};
  Tensor output = empty(place, batch_sizes ? packed_shape : shape, dtype);
  Tensor cells = save_for_backward ? empty(place, packed_shape, dtype) : nothing(place, dtype);
  Tensor h = clone(convert(h_0, dtype));
  Tensor c = clone(convert(c_0, compute_dtype(dtype)));
  kernels.forward({
      .layer = layer_of(layout, w, reverse, allow_tf32),
      .projection = data_of(gates),
      .activated = save_for_backward ? out_data(gates) : nullptr,
      .cells = save_for_backward ? out_data(cells) : nullptr,
      .output = out_data(output),
      .h = out_data(h),
      .c = out_data(c),
  });
  const ScalarType result = input.scalar_type();
  return {convert(output, result), convert(h, result), convert(c, result),
          save_for_backward ? gates : nothing(place, dtype), cells};
}

namespace {

Tensor initial_gradient(const OptionalTensor& grad, const Layout& layout, Place place, ScalarType dtype) {
  if (grad) return clone(convert(*grad, dtype));
  return zeros(place, {layout.batch(), layout.hidden_size}, dtype);
}

}  // namespace

RecurrentOutputs lltm_backward(
    const RecurrentKernels& kernels, const OptionalTensor& grad_output, const OptionalTensor& grad_h_n,
    const OptionalTensor& grad_c_n, const Tensor& input, const Tensor& h_0, const Tensor& c_0, const Tensor& weights,
    const OptionalTensor& bias, bool reverse, const OptionalTensor& batch_sizes, const Tensor& output,
    const Tensor& gates, const Tensor& cells, bool need_input, bool need_weights, bool allow_tf32) {
  const char* op = "lltm_backward";
  const Layout layout = check_arguments(op, input, h_0, c_0, weights, bias, batch_sizes);
  const Place place = place_of(input);
  const ScalarType dtype = dtype_of(kernels, input);
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
  expect_place(
      op, {{"input", &input}, {"output", &output}, {"gates", &gates}, {"cells", &cells},
           {"grad_output", address(grad_output)}, {"grad_h_n", address(grad_h_n)}, {"grad_c_n", address(grad_c_n)}});

  const Tensor w = prepared(weights, dtype);
  const Tensor activated = contiguous(gates);
  const Tensor saved_cells = contiguous(cells);
  const OptionalTensor grad = prepared(grad_output, dtype);
  Tensor grad_gates = empty(place, {layout.rows(), 3 * layout.hidden_size}, dtype);
  Tensor grad_h = initial_gradient(grad_h_n, layout, place, compute_dtype(dtype));
  Tensor grad_c = initial_gradient(grad_c_n, layout, place, compute_dtype(dtype));
  kernels.backward({
      .layer = layer_of(layout, w, reverse, allow_tf32),
      .activated = data_of(activated),
      .cells = data_of(saved_cells),
      .grad_output = data_of(grad),
      .grad_gates = out_data(grad_gates),
      .grad_h = out_data(grad_h),
      .grad_c = out_data(grad_c),
  });

  const Tensor initial_h = prepared(h_0, dtype);
  const Tensor h =
      need_weights ? previous_h(kernels, as_rows(output, layout, dtype), initial_h, layout.steps, reverse) : initial_h;
  const InputGradients rest =
      input_gradients(
          kernels.concatenate, grad_gates, w, bias, h, as_rows(input, layout, dtype), need_input, need_weights);
  const ScalarType result = input.scalar_type();
  Tensor grad_input = convert(rest.x, result);
  if (need_input && !batch_sizes) grad_input = view(grad_input, {layout.time(), layout.batch(), layout.input_size});
  return {grad_input, convert(grad_h, result), convert(grad_c, result), convert(rest.weights, result),
          convert(rest.bias, result)};
}

namespace {

constexpr RecurrentKernels cpu_kernels{
    false, [](const RecurrentForward& job) { cpu::lltm(job); },
    [](const RecurrentBackward& job) { cpu::lltm_backward(job); },
    [](Place, void* to, const void* from, size_t bytes) { std::memcpy(to, from, bytes); },
    concatenate_on_cpu};

}  // namespace
}  // namespace fourfold

STABLE_TORCH_LIBRARY_FRAGMENT(fourfold, m) {
  m.def(
      "lltm(Tensor input, Tensor h_0, Tensor c_0, Tensor weights, Tensor? bias=None, bool reverse=False,"
      " Tensor? batch_sizes=None, bool save_for_backward=True, bool allow_tf32=False)"
      " -> (Tensor output, Tensor h_n, Tensor c_n, Tensor gates, Tensor cells)");
  m.def(
      "lltm_backward(Tensor? grad_output, Tensor? grad_h_n, Tensor? grad_c_n, Tensor input, Tensor h_0, Tensor c_0,"
      " Tensor weights, Tensor? bias, bool reverse, Tensor? batch_sizes, Tensor output, Tensor gates, Tensor cells,"
      " bool need_input=True, bool need_weights=True, bool allow_tf32=False)"
      " -> (Tensor grad_input, Tensor grad_h_0, Tensor grad_c_0, Tensor grad_weights, Tensor grad_bias)");
}

STABLE_TORCH_LIBRARY_IMPL(fourfold, CPU, m) {
  m.impl("lltm", FOURFOLD_BOX(lltm, cpu_kernels));
  m.impl("lltm_backward", FOURFOLD_BOX(lltm_backward, cpu_kernels));
}
