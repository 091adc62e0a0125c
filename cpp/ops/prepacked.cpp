#include "ops/prepacked.h"

#include <cstring>

namespace fourfold {
namespace {

// The header of prepacked weights. Its size keeps the weights aligned to cache lines.
struct Header {
  char magic[8] = {'f', 'o', 'u', 'r', 'f', 'o', 'l', 'd'};
  int32_t layout = 1;  // incremented when the layout after the header changes
  int32_t kind = 0;    // the dtype of the products' operands
  char cell[8] = {};
  char level[16] = {};
  int64_t input_size = 0;
  int64_t hidden_size = 0;
  int32_t bias_ih = 0;
  int32_t bias_hh = 0;

  Header() = default;
  Header(
      const RecurrentKernels& kernels, const RecurrentCell& described, Kind factors, const RecurrentShape& shape,
      bool has_bias_ih, bool has_bias_hh)
      : kind(static_cast<int32_t>(factors)),
        input_size(shape.input_size),
        hidden_size(shape.hidden_size),
        bias_ih(has_bias_ih),
        bias_hh(has_bias_hh) {
    std::strncpy(cell, described.op, sizeof cell - 1);
    std::strncpy(level, kernels.level(), sizeof level - 1);
  }

  std::string described() const {
    const char* const biases[] = {"no bias", "a bias by x", "a bias by h", "both biases"};
    const bool is_known = kind >= 0 && kind <= static_cast<int32_t>(Kind::float64);
    return std::string(cell, strnlen(cell, sizeof cell)) + " of input_size " + std::to_string(input_size) +
           ", hidden_size " + std::to_string(hidden_size) + " and " + biases[(bias_ih != 0) + 2 * (bias_hh != 0)] +
           ", for products of " + (is_known ? name_of(dtype_of(static_cast<Kind>(kind))) : "another dtype") +
           " at CPU level " + std::string(level, strnlen(level, sizeof level)) + ", layout " + std::to_string(layout);
  }
};
static_assert(sizeof(Header) == 64);

RecurrentShape layer_shape(int64_t input_size, int64_t hidden_size) {
  RecurrentShape shape{};
  shape.input_size = input_size;
  shape.hidden_size = hidden_size;
  return shape;
}

}  // namespace

int64_t prepacked_size(const RecurrentKernels& kernels, ScalarType dtype, int64_t input_size, int64_t hidden_size) {
  RecurrentLayer layer{};
  layer.kind = kind_of(dtype_of(kernels, layer_shape(input_size, hidden_size), dtype));
  layer.input_size = input_size;
  layer.hidden_size = hidden_size;
  return static_cast<int64_t>(sizeof(Header)) + kernels.prepacked_bytes(layer);
}

Tensor prepack_weights(
    const RecurrentKernels& kernels, const RecurrentCell& cell, const char* op, const RecurrentWeights& weights) {
  const Tensor& hidden = weights.weight_hh;
  expect_floating(op, "weight_hh", hidden);
  expect_dtype(op, "weight_ih", weights.weight_ih, hidden.scalar_type());
  expect_shape(op, "weight_hh", hidden, {{"rows", -1}, {"hidden_size", -1}});
  expect_countable(op, "weight_hh", hidden);
  const int64_t size = hidden.size(1);
  const std::string name = std::to_string(cell.gates) + " * hidden_size";
  const Dimension rows{name.c_str(), cell.gates * size};
  expect_shape(op, "weight_hh", hidden, {rows, {"hidden_size", size}});
  expect_shape(op, "weight_ih", weights.weight_ih, {rows, {"input_size", -1}});
  expect_countable(op, "weight_ih", weights.weight_ih);
  for (const auto& [bias_name, bias] : {std::pair{"bias_ih", &weights.bias_ih}, {"bias_hh", &weights.bias_hh}}) {
    if (!*bias) continue;
    expect_dtype(op, bias_name, **bias, hidden.scalar_type());
    expect_shape(op, bias_name, **bias, {rows});
  }
  expect_place(
      op, {{"weight_hh", &hidden}, {"weight_ih", &weights.weight_ih}, {"bias_ih", address(weights.bias_ih)},
           {"bias_hh", address(weights.bias_hh)}});
  const RecurrentShape shape = layer_shape(weights.weight_ih.size(1), size);
  const ScalarType dtype = dtype_of(kernels, shape, hidden);
  const Tensor weight_ih = dense_rows(weights.weight_ih, dtype);
  const Tensor weight_hh = dense_rows(hidden, dtype);
  const OptionalTensor bias_ih = prepared(weights.bias_ih, dtype);
  const OptionalTensor bias_hh = prepared(weights.bias_hh, dtype);
  RecurrentLayer layer{};
  layer.place = place_of(hidden);
  layer.kind = kind_of(dtype);
  layer.input_size = weight_ih.size(1);
  layer.hidden_size = size;
  layer.weight_ih = data_of(weight_ih);
  layer.weight_ih_leading_dim = leading_dim(weight_ih);
  layer.weight_hh = data_of(weight_hh);
  layer.weight_hh_leading_dim = leading_dim(weight_hh);
  layer.bias_ih = data_of(bias_ih);
  layer.bias_hh = data_of(bias_hh);
  const int64_t bytes = prepacked_size(kernels, hidden.scalar_type(), layer.input_size, size);
  const Tensor prepacked = empty(layer.place, {bytes}, ScalarType::Byte);
  auto* to = static_cast<char*>(out_data(prepacked));
  const Header header(kernels, cell, layer.kind, shape, weights.bias_ih.has_value(), weights.bias_hh.has_value());
  std::memcpy(to, &header, sizeof header);
  kernels.prepack(layer, to + sizeof header);
  return prepacked;
}

const void* weights_in(
    const Tensor& prepacked, const RecurrentKernels& kernels, const RecurrentCell& cell, const RecurrentShape& shape,
    const RecurrentArguments& arguments) {
  const char* op = cell.op;
  if (kernels.prepacked_bytes == nullptr) {
    fail(op, ": expected no prepacked weights on this device, whose kernels read the weights as they are, but got shape ",
         shape_of(prepacked), "; pass prepacked=None");
  }
  expect_dtype(op, "prepacked", prepacked, ScalarType::Byte);
  expect_shape(op, "prepacked", prepacked, {{"bytes", -1}});
  if (!prepacked.is_contiguous()) fail(op, ": expected prepacked to be contiguous, but got stride ", prepacked.stride(0));
  expect_place(op, {{"input", &arguments.input}, {"prepacked", &prepacked}});

  const ScalarType dtype = arguments.input.scalar_type();
  const Header wanted(
      kernels, cell, kind_of(dtype_of(kernels, shape, dtype)), shape, arguments.bias_ih.has_value(),
      arguments.bias_hh.has_value());
  const int64_t bytes = prepacked_size(kernels, dtype, shape.input_size, shape.hidden_size);
  const auto* data = static_cast<const char*>(data_of(prepacked));
  const auto refuse = [&](const auto&... found) {
    fail(op, ": expected prepacked to be what fourfold::", op, "_prepack gives for these weights, ", bytes, " bytes of ",
         wanted.described(), ", but got ", found...);
  };
  Header header;
  const bool has_header = prepacked.numel() >= static_cast<int64_t>(sizeof header) &&
                          std::memcmp(data, header.magic, sizeof header.magic) == 0;
  if (!has_header) refuse("shape ", shape_of(prepacked), " of something else");
  std::memcpy(&header, data, sizeof header);
  if (std::memcmp(&header, &wanted, sizeof header) != 0 || prepacked.numel() != bytes) {
    refuse(prepacked.numel(), " bytes of ", header.described());
  }
  return data + sizeof header;
}

}  // namespace fourfold
