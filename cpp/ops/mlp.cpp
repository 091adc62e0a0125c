#include "cpu/mlp.h"

#include <torch/csrc/stable/library.h>

#include <tuple>

#include "ops/elementwise.h"

namespace fourfold {
namespace {

// Up to this many weights, the network's own loops beat a call of the vendor's product for each layer.
constexpr int64_t fused_weights = 1 << 14;
// The fused backward runs on one thread, so up to this many multiply-adds a product; and it adds up the batch in order,
// so up to this many rows, beyond which the rounding of so long a sum would show.
constexpr int64_t fused_backward_work = 1 << 21;
constexpr int64_t fused_backward_batch = 1 << 12;

struct Layout {
  int64_t batch;  // the product of x's leading dimensions
  int64_t input_size;
  int64_t hidden_size;
  int64_t output_size;

  int64_t weights() const { return hidden_size * (input_size + output_size); }
};

Layout check_arguments(
    const char* op, const Tensor& x, const Tensor& hidden_weights, const OptionalTensor& hidden_bias,
    const Tensor& output_weights, const OptionalTensor& output_bias) {
  expect_floating(op, "x", x);
  const ScalarType dtype = x.scalar_type();
  expect_dtype(op, "hidden_weights", hidden_weights, dtype);
  expect_dtype(op, "output_weights", output_weights, dtype);
  if (x.dim() == 0) fail(op, ": expected x to have shape (..., input_size), but got ()");
  Layout layout;
  layout.input_size = x.size(x.dim() - 1);
  expect_shape(op, "hidden_weights", hidden_weights, {{"hidden_size", -1}, {"input_size", layout.input_size}});
  layout.hidden_size = hidden_weights.size(0);
  expect_shape(op, "output_weights", output_weights, {{"output_size", -1}, {"hidden_size", layout.hidden_size}});
  layout.output_size = output_weights.size(0);
  if (hidden_bias) {
    expect_dtype(op, "hidden_bias", *hidden_bias, dtype);
    expect_bias(op, "hidden_bias", *hidden_bias, {"hidden_size", layout.hidden_size});
  }
  if (output_bias) {
    expect_dtype(op, "output_bias", *output_bias, dtype);
    expect_bias(op, "output_bias", *output_bias, {"output_size", layout.output_size});
  }
  layout.batch = 1;
  for (int64_t d = 0; d + 1 < x.dim(); ++d) layout.batch *= x.size(d);
  return layout;
}

// What the network's loops are given: rows (batch, size), contiguous, in the compute dtype.
struct Prepared {
  Layout layout;
  cpu::Kind kind;
  ScalarType dtype;
  Tensor x;
  Tensor hidden_weights;
  Tensor output_weights;
};

Tensor as_rows(const Tensor& x, int64_t rows, int64_t size, ScalarType dtype) {
  const Tensor dense = prepared(x, dtype);
  return dense.dim() == 2 ? dense : view(dense, {rows, size});
}

Prepared prepare(const Layout& layout, const Tensor& x, const Tensor& hidden_weights, const Tensor& output_weights) {
  const ScalarType dtype = compute_dtype(x.scalar_type());
  return {layout, kind_of(dtype), dtype, as_rows(x, layout.batch, layout.input_size, dtype),
          prepared(hidden_weights, dtype), prepared(output_weights, dtype)};
}

// rows (batch, last) with x's leading dimensions instead of batch.
Tensor like_input(const Tensor& rows, const Tensor& x, int64_t last) {
  if (x.dim() == 2) return rows;
  std::vector<int64_t> shape(x.sizes().begin(), x.sizes().end());
  shape.back() = last;
  return view(rows, shape);
}

template <typename T>
T* at_row(T* data, int64_t row, int64_t size, cpu::Kind kind) {
  using Byte = std::conditional_t<std::is_const_v<T>, const char, char>;
  return static_cast<Byte*>(data) + row * size * (kind == cpu::Kind::float64 ? 8 : 4);
}

using Forward = std::tuple<Tensor, Tensor>;  // output, hidden

Forward fused_forward(
    const Prepared& net, const OptionalTensor& hidden_bias, const OptionalTensor& output_bias, bool keep_hidden) {
  const Layout& layout = net.layout;
  Tensor hidden = keep_hidden ? empty({layout.batch, layout.hidden_size}, net.dtype) : nothing(net.dtype);
  Tensor output = empty({layout.batch, layout.output_size}, net.dtype);
  parallel(layout.batch, 1 + (int64_t(1) << 18) / (layout.weights() + 1), [&](int64_t begin, int64_t end) {
    cpu::mlp(cpu::MlpForward{
        .kind = net.kind,
        .batch = end - begin,
        .input_size = layout.input_size,
        .hidden_size = layout.hidden_size,
        .output_size = layout.output_size,
        .x = at_row(data_of(net.x), begin, layout.input_size, net.kind),
        .hidden_weights = data_of(net.hidden_weights),
        .hidden_bias = data_of(hidden_bias),
        .output_weights = data_of(net.output_weights),
        .output_bias = data_of(output_bias),
        .hidden = keep_hidden ? at_row(out_data(hidden), begin, layout.hidden_size, net.kind) : nullptr,
        .output = at_row(out_data(output), begin, layout.output_size, net.kind),
    });
  });
  return {output, hidden};
}

Forward vendor_forward(
    const Prepared& net, const OptionalTensor& hidden_bias, const OptionalTensor& output_bias, bool keep_hidden) {
  const Tensor hidden = linear(net.x, net.hidden_weights, hidden_bias);
  void* data = out_data(hidden);
  parallel(hidden.numel(), elementwise_grain, [&](int64_t begin, int64_t end) {
    cpu::relu(net.kind, end - begin, at_row(data, begin, 1, net.kind));
  });
  return {linear(hidden, net.output_weights, output_bias), keep_hidden ? hidden : nothing(net.dtype)};
}

Forward mlp(
    const Tensor& x, const Tensor& hidden_weights, const OptionalTensor& hidden_bias, const Tensor& output_weights,
    const OptionalTensor& output_bias, bool save_for_backward) {
  const Layout layout = check_arguments("mlp", x, hidden_weights, hidden_bias, output_weights, output_bias);
  const Prepared net = prepare(layout, x, hidden_weights, output_weights);
  const auto [output, hidden] =
      layout.weights() <= fused_weights
          ? fused_forward(net, prepared(hidden_bias, net.dtype), prepared(output_bias, net.dtype), save_for_backward)
          : vendor_forward(net, flat_bias(hidden_bias, net.dtype), flat_bias(output_bias, net.dtype), save_for_backward);
  return {like_input(convert(output, x.scalar_type()), x, layout.output_size), hidden};
}

struct Gradients {
  Tensor x;
  Tensor hidden_weights;
  Tensor hidden_bias;
  Tensor output_weights;
  Tensor output_bias;
};

Gradients fused_backward(
    const Prepared& net, const Tensor& grad, const Tensor& hidden, bool need_x, bool need_weights) {
  const Layout& layout = net.layout;
  const auto wanted = [&](bool need, Sizes sizes) { return need ? empty(sizes, net.dtype) : nothing(net.dtype); };
  Gradients grads{
      wanted(need_x, {layout.batch, layout.input_size}),
      wanted(need_weights, {layout.hidden_size, layout.input_size}),
      wanted(need_weights, {layout.hidden_size}),
      wanted(need_weights, {layout.output_size, layout.hidden_size}),
      wanted(need_weights, {layout.output_size}),
  };
  Tensor grad_hidden = empty({layout.batch, layout.hidden_size}, net.dtype);
  cpu::mlp_backward(cpu::MlpBackward{
      .kind = net.kind,
      .batch = layout.batch,
      .input_size = layout.input_size,
      .hidden_size = layout.hidden_size,
      .output_size = layout.output_size,
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
    const Prepared& net, const Tensor& grad, const Tensor& hidden, bool need_x, bool need_weights) {
  const Tensor grad_hidden = mm(grad, net.output_weights);
  void* data = out_data(grad_hidden);
  const void* activated = data_of(hidden);
  parallel(grad_hidden.numel(), elementwise_grain, [&](int64_t begin, int64_t end) {
    cpu::relu_backward(net.kind, end - begin, at_row(data, begin, 1, net.kind), at_row(activated, begin, 1, net.kind));
  });
  return {
      need_x ? mm(grad_hidden, net.hidden_weights) : nothing(net.dtype),
      need_weights ? mm_transposed(grad_hidden, net.x) : nothing(net.dtype),
      need_weights ? sum_rows(grad_hidden) : nothing(net.dtype),
      need_weights ? mm_transposed(grad, hidden) : nothing(net.dtype),
      need_weights ? sum_rows(grad) : nothing(net.dtype),
  };
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> mlp_backward(
    const Tensor& grad, const Tensor& x, const Tensor& hidden_weights, const OptionalTensor& hidden_bias,
    const Tensor& output_weights, const OptionalTensor& output_bias, const Tensor& hidden, bool need_x,
    bool need_weights) {
  const char* op = "mlp_backward";
  const Layout layout = check_arguments(op, x, hidden_weights, hidden_bias, output_weights, output_bias);
  const Prepared net = prepare(layout, x, hidden_weights, output_weights);
  expect_floating(op, "grad", grad);
  bool agrees = grad.dim() == x.dim() && grad.size(grad.dim() - 1) == layout.output_size;
  for (int64_t d = 0; agrees && d + 1 < x.dim(); ++d) agrees = grad.size(d) == x.size(d);
  if (!agrees) {
    fail(op, ": expected grad to have output's shape (..., ", layout.output_size, "), but got ", shape_of(grad));
  }
  expect_saved(op, hidden, {{"batch", layout.batch}, {"hidden_size", layout.hidden_size}}, net.dtype);

  const bool fused = layout.weights() <= fused_weights && layout.batch <= fused_backward_batch &&
                     layout.batch * layout.weights() <= fused_backward_work;
  const Gradients grads = (fused ? fused_backward : vendor_backward)(
      net, as_rows(grad, layout.batch, layout.output_size, net.dtype), contiguous(hidden), need_x, need_weights);
  const ScalarType result = x.scalar_type();
  const auto bias_gradient = [&](const Tensor& g, const OptionalTensor& bias) {
    return bias && need_weights ? like_bias(convert(g, result), *bias) : nothing(result);
  };
  const Tensor grad_x = convert(grads.x, result);
  return {need_x ? like_input(grad_x, x, layout.input_size) : grad_x,
          convert(grads.hidden_weights, result),
          bias_gradient(grads.hidden_bias, hidden_bias),
          convert(grads.output_weights, result),
          bias_gradient(grads.output_bias, output_bias)};
}

}  // namespace
}  // namespace fourfold

STABLE_TORCH_LIBRARY_FRAGMENT(fourfold, m) {
  m.def(
      "mlp(Tensor x, Tensor hidden_weights, Tensor? hidden_bias, Tensor output_weights, Tensor? output_bias,"
      " bool save_for_backward=True) -> (Tensor output, Tensor hidden)");
  m.def(
      "mlp_backward(Tensor grad, Tensor x, Tensor hidden_weights, Tensor? hidden_bias, Tensor output_weights,"
      " Tensor? output_bias, Tensor hidden, bool need_x=True, bool need_weights=True)"
      " -> (Tensor grad_x, Tensor grad_hidden_weights, Tensor grad_hidden_bias, Tensor grad_output_weights,"
      " Tensor grad_output_bias)");
}

STABLE_TORCH_LIBRARY_IMPL(fourfold, CPU, m) {
  m.impl("mlp", TORCH_BOX(&fourfold::mlp));
  m.impl("mlp_backward", TORCH_BOX(&fourfold::mlp_backward));
}
