#include "ops/lltm.h"

#include "ops/cells.h"
#include "ops/prepacked.h"
#include "ops/registration.h"

namespace fourfold {
namespace {

constexpr RecurrentCell cell = describe_cell<formulas::Lltm>("lltm", "lltm_backward");

void check_parameters(
    const char* op, const RecurrentShape& shape, const Tensor& input, const Tensor& h_0, const Tensor& c_0,
    const Tensor& weights, const OptionalTensor& bias, const OptionalTensor& reset) {
  check_lltm_parameters(op, input.scalar_type(), shape.input_size, shape.hidden_size, weights, bias);
  expect_place(
      op, {{"input", &input}, {"h_0", &h_0}, {"c_0", &c_0}, {"weights", &weights}, {"bias", address(bias)},
           {"reset", address(reset)}});
}

// In `weights` the columns for h come before those for x.
RecurrentArguments arguments_of(
    const RecurrentShape& shape, ScalarType dtype, const Tensor& input, const Tensor& h_0, const Tensor& c_0,
    const Tensor& weights, const OptionalTensor& bias, bool reverse, const OptionalTensor& batch_sizes,
    const OptionalTensor& reset, bool allow_tf32) {
  const Tensor converted = convert(weights, dtype);
  return {
      .input = input,
      .h_0 = h_0,
      .c_0 = c_0,
      .weight_ih = narrow(converted, 1, shape.hidden_size, shape.input_size),
      .weight_hh = narrow(converted, 1, 0, shape.hidden_size),
      .bias_ih = bias,
      .bias_hh = std::nullopt,
      .reverse = reverse,
      .batch_sizes = batch_sizes,
      .reset = reset,
      .allow_tf32 = allow_tf32,
  };
}

}  // namespace

void check_lltm_parameters(
    const char* op, ScalarType dtype, int64_t input_size, int64_t hidden_size, const Tensor& weights,
    const OptionalTensor& bias) {
  expect_dtype(op, "weights", weights, dtype);
  expect_countable(op, "weights", weights);
  expect_shape(
      op, "weights", weights,
      {{"3 * hidden_size", 3 * hidden_size}, {"hidden_size + input_size", hidden_size + input_size}});
  if (!bias) return;
  expect_dtype(op, "bias", *bias, dtype);
  expect_bias(op, "bias", *bias, {"3 * hidden_size", 3 * hidden_size});
}

LltmOutputs lltm(
    const RecurrentKernels& kernels, const Tensor& input, const Tensor& h_0, const Tensor& c_0, const Tensor& weights,
    const OptionalTensor& bias, bool reverse,
    const OptionalTensor& batch_sizes, const OptionalTensor& reset, const OptionalTensor& prepacked, bool allow_tf32,
    bool save_for_backward) {
  const RecurrentShape shape = check_sequence(cell.op, cell, input, h_0, c_0, batch_sizes, reset);
  check_parameters(cell.op, shape, input, h_0, c_0, weights, bias, reset);
  const ScalarType dtype = prepacked ? weights.scalar_type() : dtype_of(kernels, shape, input);
  const RecurrentArguments arguments = arguments_of(
      shape, dtype, input, h_0, c_0, weights, bias, reverse, batch_sizes, reset, allow_tf32);
  RecurrentOutputs outputs = run_forward(kernels, cell, shape, arguments, prepacked, save_for_backward);
  return {outputs.output, outputs.h_n, outputs.c_n, outputs.kept, outputs.cells};
}

LltmOutputs lltm_backward(
    const RecurrentKernels& kernels, const OptionalTensor& grad_output, const OptionalTensor& grad_h_n,
    const OptionalTensor& grad_c_n, const Tensor& input, const Tensor& h_0, const Tensor& c_0, const Tensor& weights,
    const OptionalTensor& bias, bool reverse,
    const OptionalTensor& batch_sizes, const OptionalTensor& reset, bool allow_tf32, const Tensor& output,
    const Tensor& kept, const Tensor& cells, const std::vector<bool>& output_mask) {
  const char* op = cell.backward_op;
  const RecurrentShape shape = check_sequence(op, cell, input, h_0, c_0, batch_sizes, reset);
  check_parameters(op, shape, input, h_0, c_0, weights, bias, reset);
  const ScalarType dtype = dtype_of(kernels, shape, input);
  const RecurrentArguments arguments =
      arguments_of(shape, dtype, input, h_0, c_0, weights, bias, reverse, batch_sizes, reset, allow_tf32);
  const RecurrentMask mask(cell, output_mask, 2);
  const Place place = place_of(input);
  const int64_t rows = cell.gates * shape.hidden_size;
  OptionalTensor grad_weights;
  WeightGradients parts;
  if (mask.parameters()) {
    parts.wanted = true;
    grad_weights = empty(place, {rows, shape.hidden_size + shape.input_size}, dtype);
    parts.weight_hh = narrow(*grad_weights, 1, 0, shape.hidden_size);
    parts.weight_ih = narrow(*grad_weights, 1, shape.hidden_size, shape.input_size);
    if (bias) parts.bias_ih = empty(place, {rows}, dtype);
  }
  const RecurrentResults results = run_backward(
      kernels, cell, shape, arguments, {grad_output, grad_h_n, grad_c_n, output, kept, cells}, parts, mask);
  return {results.grad_input, results.grad_h_0, results.grad_c_0, returned(mask.parameter(0), grad_weights, input),
          returned(mask.parameter(1), parts.bias_ih, input, bias)};
}

Tensor lltm_prepack(const RecurrentKernels& kernels, const Tensor& weights, const OptionalTensor& bias) {
  const char* op = "lltm_prepack";
  expect_floating(op, "weights", weights);
  expect_shape(op, "weights", weights, {{"3 * hidden_size", -1}, {"hidden_size + input_size", -1}});
  expect_countable(op, "weights", weights);
  const int64_t hidden_size = weights.size(0) / cell.gates;
  const int64_t input_size = weights.size(1) - hidden_size;
  check_lltm_parameters(op, weights.scalar_type(), input_size, hidden_size, weights, bias);
  return prepack_weights(
      kernels, cell, op,
      {narrow(weights, 1, hidden_size, input_size), narrow(weights, 1, 0, hidden_size),
       flat_bias(bias, weights.scalar_type()), std::nullopt});
}

}  // namespace fourfold

FOURFOLD_OPERATORS(m) {
  m.def(
      "lltm(Tensor input, Tensor h_0, Tensor c_0, Tensor weights, Tensor? bias=None, bool reverse=False,"
      " Tensor? batch_sizes=None, Tensor? reset=None, Tensor? prepacked=None, bool allow_tf32=False,"
      " bool save_for_backward=True) -> (Tensor output, Tensor h_n, Tensor c_n, Tensor kept, Tensor cells)");
  m.def(
      "lltm_backward(Tensor? grad_output, Tensor? grad_h_n, Tensor? grad_c_n, Tensor input, Tensor h_0, Tensor c_0,"
      " Tensor weights, Tensor? bias, bool reverse, Tensor? batch_sizes, Tensor? reset, bool allow_tf32,"
      " Tensor output, Tensor kept, Tensor cells, bool[] output_mask)"
      " -> (Tensor grad_input, Tensor grad_h_0, Tensor grad_c_0, Tensor grad_weights, Tensor grad_bias)");
  m.def("lltm_prepack(Tensor weights, Tensor? bias=None) -> Tensor prepacked");
}
