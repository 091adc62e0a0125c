#include "ops/mlp.h"

#include <algorithm>

#include "ops/path.h"
#include "ops/registration.h"

namespace fourfold {

bool fuses(const MlpSizes& sizes, int64_t most_width, bool wins) {
  const Path path = forced_path();
  const bool fits = std::max({sizes.input_size, sizes.hidden_size, sizes.output_size}) <= most_width;
  if (path == Path::fused && !fits) {
    fail("mlp: expected at most ", most_width,
         " inputs, hidden units and outputs, as FOURFOLD_GPU_PATH=fused demands, but got ", sizes.input_size, ", ",
         sizes.hidden_size, " and ", sizes.output_size, "; unset the variable");
  }
  return path != Path::vendor && fits && (wins || path == Path::fused);
}

namespace {

MlpSizes check_arguments(
    const char* op, const Tensor& x, const Tensor& hidden_weights, const OptionalTensor& hidden_bias,
    const Tensor& output_weights, const OptionalTensor& output_bias) {
  expect_floating(op, "x", x);
  const ScalarType dtype = x.scalar_type();
  expect_dtype(op, "hidden_weights", hidden_weights, dtype);
  expect_dtype(op, "output_weights", output_weights, dtype);
  if (x.dim() == 0) fail(op, ": expected x to have shape (..., input_size), but got ()");
  MlpSizes sizes;
  sizes.input_size = x.size(x.dim() - 1);
  expect_shape(op, "hidden_weights", hidden_weights, {{"hidden_size", -1}, {"input_size", sizes.input_size}});
  sizes.hidden_size = hidden_weights.size(0);
  expect_shape(op, "output_weights", output_weights, {{"output_size", -1}, {"hidden_size", sizes.hidden_size}});
  sizes.output_size = output_weights.size(0);
  if (hidden_bias) {
    expect_dtype(op, "hidden_bias", *hidden_bias, dtype);
    expect_bias(op, "hidden_bias", *hidden_bias, {"hidden_size", sizes.hidden_size});
  }
  if (output_bias) {
    expect_dtype(op, "output_bias", *output_bias, dtype);
    expect_bias(op, "output_bias", *output_bias, {"output_size", sizes.output_size});
  }
  expect_place(
      op, {{"x", &x}, {"hidden_weights", &hidden_weights}, {"hidden_bias", address(hidden_bias)},
           {"output_weights", &output_weights}, {"output_bias", address(output_bias)}});
  expect_countable(op, "x", x);
  expect_countable(op, "hidden_weights", {sizes.hidden_size, sizes.input_size});
  expect_countable(op, "output_weights", {sizes.output_size, sizes.hidden_size});
  sizes.batch = 1;
  for (int64_t d = 0; d + 1 < x.dim(); ++d) sizes.batch *= x.size(d);
  expect_countable(op, "the hidden layer", {sizes.batch, sizes.hidden_size});
  expect_countable(op, "the output", {sizes.batch, sizes.output_size});
  return sizes;
}

// The arguments of the network's kernels: rows (batch, size), contiguous, in the compute dtype.
struct Prepared {
  MlpSizes sizes;
  Place place;
  Kind kind;
  ScalarType dtype;
  Tensor x;
  Tensor hidden_weights;
  Tensor output_weights;
};

Prepared prepare(
    const MlpKernels& kernels, const MlpSizes& sizes, const Tensor& x, const Tensor& hidden_weights,
    const Tensor& output_weights) {
  const ScalarType dtype = kernels.low_precision ? x.scalar_type() : compute_dtype(x.scalar_type());
  return {sizes, place_of(x), kind_of(dtype), dtype, as_rows(x, sizes.batch, sizes.input_size, dtype),
          prepared(hidden_weights, dtype), prepared(output_weights, dtype)};
}

using Forward = std::tuple<Tensor, Tensor>;  // output, hidden

Forward fused_forward(
    const MlpKernels& kernels, const Prepared& net, const OptionalTensor& hidden_bias,
    const OptionalTensor& output_bias, bool keep_hidden) {
  const MlpSizes& sizes = net.sizes;
  const Tensor hidden =
      keep_hidden ? empty(net.place, {sizes.batch, sizes.hidden_size}, net.dtype) : nothing(net.place, net.dtype);
  Tensor output = empty(net.place, {sizes.batch, sizes.output_size}, net.dtype);
  if (output.numel() == 0 && hidden.numel() == 0) return {output, hidden};
  kernels.forward({
      .place = net.place,
      .kind = net.kind,
      .batch = sizes.batch,
      .input_size = sizes.input_size,
      .hidden_size = sizes.hidden_size,
      .output_size = sizes.output_size,
      .x = data_of(net.x),
      .hidden_weights = data_of(net.hidden_weights),
      .hidden_bias = data_of(hidden_bias),
      .output_weights = data_of(net.output_weights),
      .output_bias = data_of(output_bias),
      .keep = keep_hidden,
      .hidden = keep_hidden ? out_data(hidden) : nullptr,
      .output = out_data(output),
  });
  return {output, hidden};
}

Forward vendor_forward(
    const MlpKernels& kernels, const Prepared& net, const OptionalTensor& hidden_bias,
    const OptionalTensor& output_bias, bool keep_hidden) {
  const Tensor hidden = kernels.hidden_layer(net.x, net.hidden_weights, hidden_bias);
  return {linear(hidden, net.output_weights, output_bias), keep_hidden ? hidden : nothing(net.place, net.dtype)};
}

}  // namespace

Forward mlp(
    const MlpKernels& kernels, const Tensor& x, const Tensor& hidden_weights, const OptionalTensor& hidden_bias,
    const Tensor& output_weights, const OptionalTensor& output_bias, bool save_for_backward) {
  const MlpSizes sizes = check_arguments("mlp", x, hidden_weights, hidden_bias, output_weights, output_bias);
  const Prepared net = prepare(kernels, sizes, x, hidden_weights, output_weights);
  // The kernels accept a bias of either shape; torch's products need a flat one, which costs a call each.
  const auto [output, hidden] =
      kernels.fuses_forward(sizes)
          ? fused_forward(
                kernels, net, prepared(hidden_bias, net.dtype), prepared(output_bias, net.dtype), save_for_backward)
          : vendor_forward(
                kernels, net, flat_bias(hidden_bias, net.dtype), flat_bias(output_bias, net.dtype), save_for_backward);
  return {unflatten_rows(convert(output, x.scalar_type()), x, sizes.output_size), hidden};
}

namespace {

struct Gradients {
  Tensor x;
  Tensor hidden_weights;
  Tensor hidden_bias;
  Tensor output_weights;
  Tensor output_bias;
};

Gradients fused_backward(
    const MlpKernels& kernels, const Prepared& net, const Tensor& grad, const Tensor& hidden, bool need_x,
    bool need_weights) {
  const MlpSizes& sizes = net.sizes;
  const auto wanted = [&](bool need, Sizes shape) {
    return need ? empty(net.place, shape, net.dtype) : nothing(net.place, net.dtype);
  };
  Gradients grads{
      wanted(need_x, {sizes.batch, sizes.input_size}),
      wanted(need_weights, {sizes.hidden_size, sizes.input_size}),
      wanted(need_weights, {sizes.hidden_size}),
      wanted(need_weights, {sizes.output_size, sizes.hidden_size}),
      wanted(need_weights, {sizes.output_size}),
  };
  Tensor grad_hidden = empty(net.place, {sizes.batch, sizes.hidden_size}, net.dtype);
  kernels.backward({
      .place = net.place,
      .kind = net.kind,
      .batch = sizes.batch,
      .input_size = sizes.input_size,
      .hidden_size = sizes.hidden_size,
      .output_size = sizes.output_size,
      .grad = data_of(grad),
      .x = data_of(net.x),
      .hidden_weights = data_of(net.hidden_weights),
      .output_weights = data_of(net.output_weights),
      .hidden = data_of(hidden),
      .grad_hidden = out_data(grad_hidden),
      .need_x = need_x,
      .need_weights = need_weights,
      .grad_x = out_data(grads.x),
      .grad_hidden_weights = out_data(grads.hidden_weights),
      .grad_hidden_bias = out_data(grads.hidden_bias),
      .grad_output_weights = out_data(grads.output_weights),
      .grad_output_bias = out_data(grads.output_bias),
  });
  return grads;
}

Gradients vendor_backward(
    const MlpKernels& kernels, const Prepared& net, const Tensor& grad, const Tensor& hidden, bool need_x,
    bool need_weights) {
  const Tensor grad_hidden = mm(grad, net.output_weights);
  kernels.relu_backward(grad_hidden, hidden);
  const Tensor left_out = nothing(net.place, net.dtype);
  return {
      need_x ? mm(grad_hidden, net.hidden_weights) : left_out,
      need_weights ? mm_transposed(grad_hidden, net.x) : left_out,
      need_weights ? sum_rows(grad_hidden) : left_out,
      need_weights ? mm_transposed(grad, hidden) : left_out,
      need_weights ? sum_rows(grad) : left_out,
  };
}

}  // namespace

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> mlp_backward(
    const MlpKernels& kernels, const Tensor& grad, const Tensor& x, const Tensor& hidden_weights,
    const OptionalTensor& hidden_bias, const Tensor& output_weights, const OptionalTensor& output_bias,
    const Tensor& hidden, const std::vector<bool>& output_mask) {
  const char* op = "mlp_backward";
  const MlpSizes sizes = check_arguments(op, x, hidden_weights, hidden_bias, output_weights, output_bias);
  expect_mask(op, output_mask, 5);
  const Prepared net = prepare(kernels, sizes, x, hidden_weights, output_weights);
  expect_floating(op, "grad", grad);
  bool agrees = grad.dim() == x.dim() && grad.size(grad.dim() - 1) == sizes.output_size;
  for (int64_t d = 0; agrees && d + 1 < x.dim(); ++d) agrees = grad.size(d) == x.size(d);
  if (!agrees) {
    fail(op, ": expected grad to have output's shape (..., ", sizes.output_size, "), but got ", shape_of(grad));
  }
  expect_saved(op, hidden, {{"batch", sizes.batch}, {"hidden_size", sizes.hidden_size}}, net.dtype);
  expect_place(op, {{"x", &x}, {"grad", &grad}, {"hidden", &hidden}});

  const bool need_x = output_mask[0];
  const bool need_weights = std::find(output_mask.begin() + 1, output_mask.end(), true) != output_mask.end();
  const Gradients grads = (kernels.fuses_backward(sizes) ? fused_backward : vendor_backward)(
      kernels, net, as_rows(grad, sizes.batch, sizes.output_size, net.dtype), contiguous(hidden), need_x,
      need_weights);
  const Tensor grad_x = returned(need_x, grads.x, x);
  return {need_x ? unflatten_rows(grad_x, x, sizes.input_size) : grad_x,
          returned(output_mask[1], grads.hidden_weights, x),
          returned(output_mask[2], grads.hidden_bias, x, hidden_bias),
          returned(output_mask[3], grads.output_weights, x),
          returned(output_mask[4], grads.output_bias, x, output_bias)};
}

}  // namespace fourfold

FOURFOLD_OPERATORS(m) {
  m.def(
      "mlp(Tensor x, Tensor hidden_weights, Tensor? hidden_bias, Tensor output_weights, Tensor? output_bias,"
      " bool save_for_backward=True) -> (Tensor output, Tensor hidden)");
  m.def(
      "mlp_backward(Tensor grad, Tensor x, Tensor hidden_weights, Tensor? hidden_bias, Tensor output_weights,"
      " Tensor? output_bias, Tensor hidden, bool[] output_mask)"
      " -> (Tensor grad_x, Tensor grad_hidden_weights, Tensor grad_hidden_bias, Tensor grad_output_weights,"
      " Tensor grad_output_bias)");
}
