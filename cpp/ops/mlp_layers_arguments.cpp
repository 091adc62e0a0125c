#include "ops/mlp_layers_arguments.h"

#include <string_view>

namespace fourfold {
namespace {

Activation activation_of(const char* op, StringHandle handle) {
  const std::string name = text_of(handle);
  constexpr std::string_view names[] = {"relu", "tanh", "gelu", "silu"};
  for (int k = 0; k < 4; ++k) {
    if (name == names[k]) return static_cast<Activation>(k);
  }
  fail(op, ": expected activation to be relu, tanh, gelu or silu, but got ", name);
}

// Throws the error of an invalid parameter, by the checks that all operators share.
void refuse(
    const char* op, const Tensor& x, const char* list, size_t l, const Tensor& parameter, int64_t output_size,
    int64_t input_size) {
  const std::string name = std::string(list) + "[" + std::to_string(l) + "]";
  expect_dtype(op, name.c_str(), parameter, x.scalar_type());
  if (input_size < 0) {
    expect_bias(op, name.c_str(), parameter, {"output_size", output_size});
  } else {
    expect_shape(op, name.c_str(), parameter, {{"output_size", output_size}, {"input_size", input_size}});
  }
  expect_place(op, {{"x", &x}, {name.c_str(), &parameter}});
}

bool is_at(const Place& place, const Tensor& tensor) {
  const Place other = place_of(tensor);
  return other.type == place.type && other.index == place.index;
}

// Parameter names cost more than the checks, so they are built only for errors.
void check_layer(
    const char* op, const Tensor& x, const Place& place, const Tensor& weights, const OptionalTensor& bias, size_t l,
    int64_t input_size) {
  const ScalarType dtype = x.scalar_type();
  if (weights.dim() != 2 || weights.size(1) != input_size || weights.scalar_type() != dtype || !is_at(place, weights)) {
    refuse(op, x, "weights", l, weights, -1, input_size);
  }
  if (!countable(weights.sizes())) expect_countable(op, ("weights[" + std::to_string(l) + "]").c_str(), weights);
  const int64_t size = weights.size(0);
  if (bias && (bias->dim() != 1 || bias->size(0) != size || bias->scalar_type() != dtype || !is_at(place, *bias))) {
    refuse(op, x, "biases", l, *bias, size, -1);
  }
}

}  // namespace

Network network_of(
    const char* op, const Tensor& x, const std::vector<Tensor>& weights, const std::vector<OptionalTensor>& biases,
    StringHandle activation_name, bool low_precision) {
  const Activation activation = activation_of(op, activation_name);
  expect_floating(op, "x", x);
  if (x.dim() == 0) fail(op, ": expected x to have shape (..., input_size), but got ()");
  if (weights.empty()) fail(op, ": expected weights to have a matrix for each layer, but got none");
  if (biases.size() != weights.size()) {
    fail(op, ": expected biases to have one for each of the ", weights.size(),
         " weights, None for a layer without, but got ", biases.size());
  }
  const Place place = place_of(x);
  std::vector<int64_t> sizes;
  sizes.reserve(weights.size() + 1);
  sizes.push_back(x.size(x.dim() - 1));
  for (size_t l = 0; l < weights.size(); ++l) {
    check_layer(op, x, place, weights[l], biases[l], l, sizes.back());
    sizes.push_back(weights[l].size(0));
  }
  expect_countable(op, "x", x);
  int64_t rows = 1;
  for (int64_t d = 0; d + 1 < x.dim(); ++d) rows *= x.size(d);
  int64_t widths = 0;
  for (const int64_t size : sizes) {
    expect_countable(op, "each layer's output", {rows, size});
    widths += size;
  }
  expect_countable(op, "all layers' outputs", {rows, widths});
  const ScalarType dtype = low_precision ? x.scalar_type() : compute_dtype(x.scalar_type());
  Network net{activation, place, kind_of(dtype), dtype, rows, std::move(sizes),
              as_rows(x, rows, x.size(x.dim() - 1), dtype), {}, {}};
  net.weights.reserve(weights.size());
  net.biases.reserve(weights.size());
  for (size_t l = 0; l < weights.size(); ++l) {
    net.weights.push_back(prepared(weights[l], dtype));
    net.biases.push_back(prepared(biases[l], dtype));
  }
  return net;
}

namespace {

int64_t width_of(int64_t size, Keep keep) { return keep == Keep::bits ? (size + 7) / 8 : size; }

}  // namespace

int64_t kept_width(const Network& net, Keep keep) {
  int64_t width = 0;
  for (int64_t l = 0; net.hidden(l); ++l) width += width_of(net.sizes[l + 1], keep);
  return width;
}

Kept::Kept(const Network& net, Keep keep, const Tensor& memory)
    : keep(keep),
      step(kept_width(net, keep)),
      element_size(static_cast<int64_t>(memory.element_size())),
      memory(keep == Keep::nothing ? Output() : out_data(memory)),
      offsets(net.weights.size()) {
  for (int64_t l = 0; net.hidden(l); ++l) offsets[l + 1] = offsets[l] + width_of(net.sizes[l + 1], keep);
}

Tensor Kept::view(const Network& net, int64_t l) const {
  return matrix(net.place, at(l), net.rows, net.sizes[l + 1], step, net.kind);
}

Needs::Needs(const char* op, const Network& net, const std::vector<bool>& output_mask)
    : count_(net.count()), needed_(output_mask), has_bias_(net.biases.size()) {
  expect_mask(op, output_mask, 1 + 2 * net.weights.size());
  for (size_t l = 0; l < has_bias_.size(); ++l) has_bias_[l] = net.biases[l].has_value();
}

bool Needs::any_weights() const {
  for (int64_t l = 0; l < count_; ++l) {
    if (weights(l)) return true;
  }
  return false;
}

int64_t Needs::lowest() const {
  if (x()) return -1;
  int64_t l = 0;
  while (l < count_ && !weights(l) && !bias(l)) ++l;
  return l;
}

void check_backward(
    const char* op, const Network& net, const Tensor& x, const Tensor& grad, const Tensor& kept, const Needs& needs,
    bool keeps_bits) {
  expect_floating(op, "grad", grad);
  bool agrees = grad.dim() == x.dim() && grad.size(grad.dim() - 1) == net.sizes.back();
  for (int64_t d = 0; agrees && d + 1 < x.dim(); ++d) agrees = grad.size(d) == x.size(d);
  if (!agrees) {
    fail(op, ": expected grad to have output's shape (..., ", net.sizes.back(), "), but got ", shape_of(grad));
  }
  const bool bits = keeps_bits && net.activation == Activation::relu && kept.scalar_type() == ScalarType::Byte;
  const Keep keep = bits ? Keep::bits : Keep::values;
  expect_saved(op, kept, {{"rows", net.rows}, {"kept_size", kept_width(net, keep)}},
               bits ? ScalarType::Byte : net.dtype);
  if (bits && needs.any_weights()) {
    fail(op, ": the forward call saved only bits, which are not enough for the weights' gradients; call it with "
         "need_weights=True");
  }
  expect_place(op, {{"x", &x}, {"grad", &grad}, {"kept", &kept}});
}

}  // namespace fourfold
