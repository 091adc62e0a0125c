#include "ops/mlp_layers.h"

#include "ops/mlp_layers_arguments.h"
#include "ops/registration.h"

namespace fourfold {
namespace {

// Layers [begin, end): several computed by the fused kernels, or a single one by torch's product.
struct Run {
  int64_t begin;
  int64_t end;
  bool fused;
};

template <typename Fuses>
Run run_from(const Network& net, int64_t begin, const Fuses& fuses) {
  int64_t end = begin;
  while (end < net.count() && fuses(end)) ++end;
  return end == begin ? Run{begin, begin + 1, false} : Run{begin, end, true};
}

template <typename Fuses>
Run run_until(int64_t end, const Fuses& fuses) {
  int64_t begin = end;
  while (begin > 0 && fuses(begin - 1)) --begin;
  return begin == end ? Run{end - 1, end, false} : Run{begin, end, true};
}

std::vector<DenseLayer> layers_of(const Network& net, const Run& run, const Kept& kept) {
  std::vector<DenseLayer> layers;
  layers.reserve(static_cast<size_t>(run.end - run.begin));
  for (int64_t l = run.begin; l < run.end; ++l) {
    layers.push_back({
        .input_size = net.sizes[l],
        .output_size = net.sizes[l + 1],
        .weights = data_of(net.weights[l]),
        .bias = data_of(net.biases[l]),
        .activated = net.hidden(l),
        .kept = net.hidden(l) ? kept.at(l) : Output(),
        .need_weights = false,
        .need_bias = false,
        .grad_weights = nullptr,
        .grad_bias = nullptr,
    });
  }
  return layers;
}

int64_t row_step(const Tensor& rows) { return rows.strides()[0]; }

Tensor fused_forward(
    const MlpLayersKernels& kernels, const Network& net, const Run& run, const Kept& kept, const Tensor& x) {
  const std::vector<DenseLayer> layers = layers_of(net, run, kept);
  const int64_t last = run.end - 1;
  // The output is written to the saved memory, unless that holds the activation's input.
  const bool in_kept = net.hidden(last) && kept.keep == Keep::values && !keeps_input(net.activation);
  const Tensor output = in_kept ? kept.view(net, last) : empty(net.place, {net.rows, net.sizes[run.end]}, net.dtype);
  if (output.numel() == 0 && kept.step == 0) return output;
  kernels.forward({
      .place = net.place,
      .kind = net.kind,
      .activation = net.activation,
      .keep = kept.keep,
      .rows = net.rows,
      .count = static_cast<int64_t>(layers.size()),
      .layers = layers.data(),
      .kept_step = kept.step,
      .x = data_of(x),
      .x_step = net.sizes[run.begin] == 0 ? 0 : row_step(x),
      .output = out_data(output),
      .output_step = in_kept ? kept.step : net.sizes[run.end],
  });
  return output;
}

// Applies a hidden layer's activation after torch's product, and saves what the backward needs.
Tensor activated(const MlpLayersKernels& kernels, const Network& net, const Kept& kept, int64_t l, const Tensor& z) {
  const bool values = kept.keep == Keep::values;
  if (values && keeps_input(net.activation)) copy_into(kept.view(net, l), z);
  // The CPU kernel writes contiguous rows; a single column of wider memory has none.
  const bool in_kept = values && !keeps_input(net.activation) && net.sizes[l + 1] > 1;
  const Tensor out = in_kept ? kept.view(net, l) : z;
  kernels.activate(net.activation, elementwise(out, {&z}));
  if (values && !keeps_input(net.activation) && !in_kept) copy_into(kept.view(net, l), out);
  if (kept.keep == Keep::bits) kernels.pack_bits(out, kept.at(l), kept.step);
  return out;
}

}  // namespace

std::tuple<Tensor, Tensor> mlp_layers(
    const MlpLayersKernels& kernels, const Tensor& x, const std::vector<Tensor>& weights,
    const std::vector<OptionalTensor>& biases, StringHandle activation, bool save_for_backward, bool need_weights) {
  const char* op = "mlp_layers";
  const Network net = network_of(op, x, weights, biases, activation, kernels.low_precision);
  const bool bits = kernels.keeps_bits && !need_weights && net.activation == Activation::relu;
  const Keep keep = !save_for_backward ? Keep::nothing : bits ? Keep::bits : Keep::values;
  const int64_t width = kept_width(net, keep);
  const ScalarType kept_dtype = keep == Keep::bits ? ScalarType::Byte : net.dtype;
  const Tensor memory =
      keep == Keep::nothing ? nothing(net.place, kept_dtype) : empty(net.place, {net.rows, width}, kept_dtype);
  const Kept kept(net, keep, memory);
  Tensor current = net.x;
  for (int64_t l = 0; l < net.count();) {
    const Run run = run_from(net, l, [&](int64_t k) { return kernels.fuses(net.rows, net.sizes[k], net.sizes[k + 1]); });
    if (run.fused) {
      current = fused_forward(kernels, net, run, kept, current);
    } else {
      current = linear(current, net.weights[l], flat_bias(net.biases[l], net.dtype));
      if (net.hidden(l)) current = activated(kernels, net, kept, l, current);
    }
    l = run.end;
  }
  return {unflatten_rows(convert(current, x.scalar_type()), x, net.sizes.back()), memory};
}

namespace {

struct Gradients {
  std::vector<OptionalTensor> weights;
  std::vector<OptionalTensor> biases;
};

// fused_backward and vendor_backward return the gradient of their layers' input or, if it isn't needed, `grad`.
Tensor fused_backward(
    const MlpLayersKernels& kernels, const Network& net, const Run& run, const Kept& kept, const Tensor& grad,
    const Tensor& x, bool need_x, const Needs& needs, Gradients& grads) {
  std::vector<DenseLayer> layers = layers_of(net, run, kept);
  for (int64_t l = run.begin; l < run.end; ++l) {
    DenseLayer& layer = layers[l - run.begin];
    layer.need_weights = needs.weights(l);
    layer.need_bias = needs.bias(l);
    if (layer.need_weights) {
      grads.weights[l] = empty(net.place, {net.sizes[l + 1], net.sizes[l]}, net.dtype);
      layer.grad_weights = out_data(*grads.weights[l]);
    }
    if (layer.need_bias) {
      grads.biases[l] = empty(net.place, {net.sizes[l + 1]}, net.dtype);
      layer.grad_bias = out_data(*grads.biases[l]);
    }
  }
  const Tensor grad_x = need_x ? empty(net.place, {net.rows, net.sizes[run.begin]}, net.dtype) : grad;
  kernels.backward({
      .place = net.place,
      .kind = net.kind,
      .activation = net.activation,
      .keep = kept.keep,
      .rows = net.rows,
      .count = static_cast<int64_t>(layers.size()),
      .layers = layers.data(),
      .kept_step = kept.step,
      .grad = data_of(grad),
      .x = data_of(x),
      .x_step = net.sizes[run.begin] == 0 ? 0 : row_step(x),
      .need_x = need_x,
      .grad_x = need_x ? out_data(grad_x) : nullptr,
  });
  return grad_x;
}

// Layer l's input for the backward: x, or the values of the hidden layer below.
Tensor input_of(const MlpLayersKernels& kernels, const Network& net, const Kept& kept, int64_t l) {
  if (l == 0) return net.x;
  const Tensor below = kept.view(net, l - 1);
  if (!keeps_input(net.activation)) return below;
  const Tensor values = empty(net.place, {net.rows, net.sizes[l]}, net.dtype);
  kernels.activate(net.activation, elementwise(values, {&below}));
  return values;
}

Tensor vendor_backward(
    const MlpLayersKernels& kernels, const Network& net, int64_t l, const Kept& kept, const Tensor& grad, bool need_x,
    const Needs& needs, Gradients& grads) {
  if (net.hidden(l)) {  // in place: only the last layer's gradient belongs to the caller
    const bool bits = kept.keep == Keep::bits;
    const Tensor values = bits ? empty(net.place, {net.rows, net.sizes[l + 1]}, net.dtype) : kept.view(net, l);
    if (bits) kernels.unpack_bits(values, kept.at(l), kept.step);
    kernels.activate_backward(net.activation, elementwise(grad, {&grad, &values}));
  }
  if (needs.weights(l)) grads.weights[l] = mm_transposed(grad, input_of(kernels, net, kept, l));
  if (needs.bias(l)) grads.biases[l] = sum_rows(grad);
  return need_x ? mm(grad, net.weights[l]) : grad;
}

Tensor backward_of(
    const MlpLayersKernels& kernels, const Network& net, const Kept& kept, const Tensor& grad, const Needs& needs,
    Gradients& grads) {
  int64_t weights = 0;
  for (const Tensor& w : net.weights) weights += w.numel();
  const bool fuses_rows = kernels.fuses_backward(net.rows, weights);
  const int64_t lowest = needs.lowest();
  Tensor current = grad;
  for (int64_t l = net.count(); l > lowest && l > 0;) {
    const Run run = run_until(l, [&](int64_t k) {
      return fuses_rows && kernels.fuses(net.rows, net.sizes[k], net.sizes[k + 1]);
    });
    const bool below = lowest < run.begin;
    if (run.fused) {
      const Tensor x = run.begin == 0 ? net.x : input_of(kernels, net, kept, run.begin);
      current = fused_backward(kernels, net, run, kept, current, x, below, needs, grads);
    } else {
      current = vendor_backward(kernels, net, run.begin, kept, current, below, needs, grads);
    }
    l = run.begin;
  }
  return current;
}

}  // namespace

std::tuple<Tensor, std::vector<Tensor>, std::vector<Tensor>> mlp_layers_backward(
    const MlpLayersKernels& kernels, const Tensor& grad, const Tensor& x, const std::vector<Tensor>& weights,
    const std::vector<OptionalTensor>& biases, StringHandle activation, const Tensor& kept_memory,
    const std::vector<bool>& output_mask) {
  const char* op = "mlp_layers_backward";
  const Network net = network_of(op, x, weights, biases, activation, kernels.low_precision);
  const Needs needs(op, net, output_mask);
  check_backward(op, net, x, grad, kept_memory, needs, kernels.keeps_bits);
  const Tensor memory = contiguous(kept_memory);
  const Kept kept(net, memory.scalar_type() == ScalarType::Byte ? Keep::bits : Keep::values, memory);
  Gradients grads{std::vector<OptionalTensor>(weights.size()), std::vector<OptionalTensor>(weights.size())};
  const Tensor grad_x =
      backward_of(kernels, net, kept, as_rows(grad, net.rows, net.sizes.back(), net.dtype), needs, grads);
  std::vector<Tensor> of_weights, of_biases;
  for (int64_t l = 0; l < net.count(); ++l) {
    of_weights.push_back(returned(needs.weights(l), grads.weights[l], x));
    of_biases.push_back(returned(needs.bias(l), grads.biases[l], x, biases[l]));
  }
  const Tensor of_x = returned(needs.x(), grad_x, x);
  return {needs.x() ? unflatten_rows(of_x, x, net.sizes.front()) : of_x, of_weights, of_biases};
}

}  // namespace fourfold

FOURFOLD_OPERATORS(m) {
  m.def(
      "mlp_layers(Tensor x, Tensor[] weights, Tensor?[] biases, str activation=\"relu\", bool save_for_backward=True,"
      " bool need_weights=True) -> (Tensor output, Tensor kept)");
  m.def(
      "mlp_layers_backward(Tensor grad, Tensor x, Tensor[] weights, Tensor?[] biases, str activation, Tensor kept,"
      " bool[] output_mask) -> (Tensor grad_x, Tensor[] grad_weights, Tensor[] grad_biases)");
}
