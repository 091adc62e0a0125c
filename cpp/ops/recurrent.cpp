#include "ops/recurrent.h"

#include <algorithm>

#include "ops/prepacked.h"

namespace fourfold {
namespace {

using torch::headeronly::DeviceType;

std::vector<int64_t> offsets_of(const char* op, const Tensor& batch_sizes, int64_t rows, int64_t batch) {
  expect_dtype(op, "batch_sizes", batch_sizes, ScalarType::Long);
  expect_shape(op, "batch_sizes", batch_sizes, {{"time", -1}});
  if (batch_sizes.device().type() != DeviceType::CPU) {
    fail(op, ": expected batch_sizes to be on the CPU, as torch.nn.utils.rnn keeps them; move it with .to('cpu')");
  }
  const Tensor sizes = contiguous(batch_sizes);
  const auto* size = static_cast<const int64_t*>(data_of(sizes));
  std::vector<int64_t> offsets{0};
  for (int64_t t = 0; t < sizes.numel(); ++t) {
    const int64_t most = t == 0 ? batch : size[t - 1];
    if (size[t] < 1 || size[t] > most || (t == 0 && size[t] != batch)) {
      fail(op, ": expected batch_sizes to begin with batch = ", batch, " and never to increase or reach 0, but got ",
           size[t], " at step ", t);
    }
    int64_t end = 0;
    if (__builtin_add_overflow(offsets.back(), size[t], &end)) {
      fail(op, ": expected batch_sizes to add up to input's ", rows, " rows, but they add up to 2^63 or more");
    }
    offsets.push_back(end);
  }
  if (offsets.back() != rows) {
    fail(op, ": expected batch_sizes to add up to input's ", rows, " rows, but they add up to ", offsets.back());
  }
  return offsets;
}

}  // namespace

RecurrentShape check_sequence(
    const char* op, const RecurrentCell& cell, const Tensor& input, const Tensor& h_0, const OptionalTensor& c_0,
    const OptionalTensor& batch_sizes, const OptionalTensor& reset) {
  expect_floating(op, "input", input);
  expect_dtype(op, "h_0", h_0, input.scalar_type());
  if (cell.has_c) expect_dtype(op, "c_0", *c_0, input.scalar_type());
  if (batch_sizes) {
    expect_shape(op, "input", input, {{"rows", -1}, {"input_size", -1}});
  } else {
    expect_shape(op, "input", input, {{"time", -1}, {"batch", -1}, {"input_size", -1}});
  }
  RecurrentShape shape;
  shape.input_size = input.size(input.dim() - 1);
  expect_shape(op, "h_0", h_0, {{"batch", batch_sizes ? -1 : input.size(1)}, {"hidden_size", -1}});
  shape.batch = h_0.size(0);
  shape.hidden_size = h_0.size(1);
  if (cell.has_c) expect_shape(op, "c_0", *c_0, {{"batch", shape.batch}, {"hidden_size", shape.hidden_size}});
  expect_countable(op, "input", input);
  expect_countable(op, "h_0", h_0);
  shape.time = input.size(0);
  if (batch_sizes) {
    shape.offsets = offsets_of(op, *batch_sizes, input.size(0), shape.batch);
    shape.time = batch_sizes->numel();
  }
  if (reset) {
    expect_dtype(op, "reset", *reset, ScalarType::Bool);
    if (batch_sizes) {
      expect_shape(op, "reset", *reset, {{"rows", input.size(0)}});
    } else {
      expect_shape(op, "reset", *reset, {{"time", shape.time}, {"batch", shape.batch}});
    }
  }
  expect_countable(op, "what is kept of each step", {shape.rows(), cell.kept * shape.hidden_size});
  return shape;
}

ScalarType dtype_of(const RecurrentKernels& kernels, const RecurrentShape& shape, ScalarType dtype) {
  return kernels.computes(dtype, shape) ? dtype : compute_dtype(dtype);
}

ScalarType dtype_of(const RecurrentKernels& kernels, const RecurrentShape& shape, const Tensor& input) {
  return dtype_of(kernels, shape, input.scalar_type());
}

ScalarType kept_dtype_of(const RecurrentKernels& kernels, const RecurrentShape& shape, const Tensor& input) {
  return input.scalar_type() == ScalarType::BFloat16 ? ScalarType::BFloat16 : dtype_of(kernels, shape, input);
}

RecurrentShape check_arguments(const char* op, const RecurrentCell& cell, const RecurrentArguments& arguments) {
  const RecurrentShape shape = check_sequence(
      op, cell, arguments.input, arguments.h_0, arguments.c_0, arguments.batch_sizes, arguments.reset);
  const std::string name = std::to_string(cell.gates) + " * hidden_size";
  const Dimension rows{name.c_str(), cell.gates * shape.hidden_size};
  const ScalarType dtype = arguments.input.scalar_type();
  expect_dtype(op, "weight_ih", arguments.weight_ih, dtype);
  expect_dtype(op, "weight_hh", arguments.weight_hh, dtype);
  expect_shape(op, "weight_ih", arguments.weight_ih, {rows, {"input_size", shape.input_size}});
  expect_shape(op, "weight_hh", arguments.weight_hh, {rows, {"hidden_size", shape.hidden_size}});
  expect_countable(op, "weight_ih", arguments.weight_ih);
  expect_countable(op, "weight_hh", arguments.weight_hh);
  for (const auto& [bias_name, bias] : {std::pair{"bias_ih", &arguments.bias_ih}, {"bias_hh", &arguments.bias_hh}}) {
    if (!*bias) continue;
    expect_dtype(op, bias_name, **bias, dtype);
    expect_shape(op, bias_name, **bias, {rows});
  }
  expect_place(
      op, {{"input", &arguments.input}, {"h_0", &arguments.h_0}, {"c_0", address(arguments.c_0)},
           {"weight_ih", &arguments.weight_ih}, {"weight_hh", &arguments.weight_hh},
           {"bias_ih", address(arguments.bias_ih)}, {"bias_hh", address(arguments.bias_hh)},
           {"reset", address(arguments.reset)}});
  return shape;
}

Tensor dense_rows(const Tensor& matrix, ScalarType dtype) {
  const Tensor converted = convert(matrix, dtype);
  return converted.stride(1) == 1 || converted.size(1) <= 1 ? converted : contiguous(converted);
}

int64_t leading_dim(const Tensor& matrix) { return matrix.size(0) <= 1 ? matrix.size(1) : matrix.stride(0); }
int64_t leading_dim(const OptionalTensor& matrix) { return matrix ? leading_dim(*matrix) : 0; }

namespace {

// The arguments prepared for kernels, and the layer that points to them.
struct Prepared {
  Tensor input;
  Tensor h_0;
  OptionalTensor c_0;
  OptionalTensor weight_ih;
  OptionalTensor weight_hh;
  OptionalTensor bias_ih;
  OptionalTensor bias_hh;
  OptionalTensor reset;
  RecurrentLayer layer;
};

// with_weights: false for calls with prepacked weights, which needn't convert the original ones.
Prepared prepare(
    const RecurrentKernels& kernels, const RecurrentShape& shape, const RecurrentArguments& arguments,
    bool with_weights = true) {
  const ScalarType dtype = dtype_of(kernels, shape, arguments.input);
  Prepared p{
      .input = prepared(arguments.input, dtype),
      .h_0 = prepared(arguments.h_0, dtype),
      .c_0 = prepared(arguments.c_0, dtype),
      .weight_ih = std::nullopt,
      .weight_hh = std::nullopt,
      .bias_ih = std::nullopt,
      .bias_hh = std::nullopt,
      .reset = arguments.reset ? OptionalTensor(contiguous(*arguments.reset)) : std::nullopt,
      .layer = {},
  };
  if (with_weights) {
    p.weight_ih = dense_rows(arguments.weight_ih, dtype);
    p.weight_hh = dense_rows(arguments.weight_hh, dtype);
    p.bias_ih = prepared(arguments.bias_ih, dtype);
    p.bias_hh = prepared(arguments.bias_hh, dtype);
  }
  p.layer = {
      .place = place_of(p.input),
      .kind = kind_of(dtype),
      .time = shape.time,
      .batch = shape.batch,
      .input_size = shape.input_size,
      .hidden_size = shape.hidden_size,
      .reverse = arguments.reverse,
      .allow_tf32 = arguments.allow_tf32,
      .offsets = shape.offsets.empty() ? nullptr : shape.offsets.data(),
      .reset = data_of(p.reset),
      .weight_ih = data_of(p.weight_ih),
      .weight_ih_leading_dim = leading_dim(p.weight_ih),
      .weight_hh = data_of(p.weight_hh),
      .weight_hh_leading_dim = leading_dim(p.weight_hh),
      .bias_ih = data_of(p.bias_ih),
      .bias_hh = data_of(p.bias_hh),
  };
  return p;
}

Output data_or_null(const OptionalTensor& x) { return x ? out_data(*x) : Output(); }

Tensor allocate(bool wanted, Place place, Sizes sizes, ScalarType dtype) {
  return wanted ? empty(place, sizes, dtype) : nothing(place, dtype);
}

Tensor like_input(const RecurrentShape& shape, bool by_rows, Place place, int64_t size, ScalarType dtype) {
  return by_rows ? empty(place, {shape.rows(), size}, dtype) : empty(place, {shape.time, shape.batch, size}, dtype);
}

}  // namespace

RecurrentMask::RecurrentMask(const RecurrentCell& cell, const std::vector<bool>& output_mask, size_t parameters)
    : mask_(output_mask), has_c_(cell.has_c) {
  expect_mask(cell.backward_op, output_mask, (has_c_ ? 3 : 2) + parameters);
}

bool RecurrentMask::parameters() const {
  return std::find(mask_.begin() + (has_c_ ? 3 : 2), mask_.end(), true) != mask_.end();
}

RecurrentOutputs run_forward(
    const RecurrentKernels& kernels, const RecurrentCell& cell, const RecurrentShape& shape,
    const RecurrentArguments& arguments, const OptionalTensor& prepacked, bool save_for_backward) {
  const Prepared p = prepare(kernels, shape, arguments, !prepacked);
  const Place place = p.layer.place;
  const ScalarType dtype = p.input.scalar_type();
  const int64_t size = shape.hidden_size;
  const void* prepacked_weights = prepacked ? weights_in(*prepacked, kernels, cell, shape, arguments) : nullptr;
  const RecurrentOutputs outputs{
      like_input(shape, arguments.batch_sizes.has_value(), place, size, dtype),
      empty(place, {shape.batch, size}, dtype),
      allocate(cell.has_c, place, {shape.batch, size}, dtype),
      allocate(save_for_backward, place, {shape.rows(), cell.kept * size}, dtype),
      allocate(save_for_backward && cell.has_c, place, {shape.rows(), size}, dtype),
  };
  const RecurrentForward job{
      .layer = p.layer,
      .prepacked = prepacked_weights,
      .input = data_of(p.input),
      .h_0 = data_of(p.h_0),
      .c_0 = data_of(p.c_0),
      .output = out_data(outputs.output),
      .h_n = out_data(outputs.h_n),
      .c_n = cell.has_c ? out_data(outputs.c_n) : nullptr,
      .keep = save_for_backward,
      .kept = save_for_backward ? out_data(outputs.kept) : nullptr,
      .cells = save_for_backward && cell.has_c ? out_data(outputs.cells) : nullptr,
  };
  // If batch or hidden_size is 0, all results are empty, for any number of steps.
  if (shape.batch > 0 && size > 0) kernels.forward(job);
  const ScalarType result = arguments.input.scalar_type();
  const ScalarType keeps = kept_dtype_of(kernels, shape, arguments.input);
  return {convert(outputs.output, result), convert(outputs.h_n, result), convert(outputs.c_n, result),
          convert(outputs.kept, keeps), convert(outputs.cells, keeps)};
}

namespace {

void check_gradients(
    const RecurrentKernels& kernels, const RecurrentCell& cell, const RecurrentShape& shape,
    const RecurrentArguments& arguments, const RecurrentGradients& gradients) {
  const char* op = cell.backward_op;
  const Dimension rows{"rows", shape.rows()};
  const Dimension batch{"batch", shape.batch};
  const Dimension hidden{"hidden_size", shape.hidden_size};
  const ScalarType keeps = kept_dtype_of(kernels, shape, arguments.input);
  const std::string columns = std::to_string(cell.kept) + " * hidden_size";
  expect_saved(op, gradients.kept, {rows, {columns.c_str(), cell.kept * shape.hidden_size}}, keeps);
  if (cell.has_c) expect_saved(op, *gradients.cells, {rows, hidden}, keeps);
  expect_gradient(op, "grad_h_n", gradients.grad_h_n, {batch, hidden});
  expect_gradient(op, "grad_c_n", gradients.grad_c_n, {batch, hidden});
  expect_floating(op, "output", gradients.output);
  if (arguments.batch_sizes) {
    expect_shape(op, "output", gradients.output, {rows, hidden});
    expect_gradient(op, "grad_output", gradients.grad_output, {rows, hidden});
  } else {
    expect_shape(op, "output", gradients.output, {{"time", shape.time}, batch, hidden});
    expect_gradient(op, "grad_output", gradients.grad_output, {{"time", shape.time}, batch, hidden});
  }
  expect_place(
      op, {{"input", &arguments.input}, {"output", &gradients.output}, {"kept", &gradients.kept},
           {"cells", address(gradients.cells)}, {"grad_output", address(gradients.grad_output)},
           {"grad_h_n", address(gradients.grad_h_n)}, {"grad_c_n", address(gradients.grad_c_n)}});
}

}  // namespace

RecurrentResults run_backward(
    const RecurrentKernels& kernels, const RecurrentCell& cell, const RecurrentShape& shape,
    const RecurrentArguments& arguments, const RecurrentGradients& gradients, const WeightGradients& weights,
    const RecurrentMask& mask) {
  check_gradients(kernels, cell, shape, arguments, gradients);
  const ScalarType dtype = dtype_of(kernels, shape, arguments.input);
  const bool by_rows = arguments.batch_sizes.has_value();
  const Prepared p = prepare(kernels, shape, arguments);
  const Place place = p.layer.place;
  const Tensor output = prepared(gradients.output, dtype);
  const Tensor kept = prepared(gradients.kept, dtype);
  const OptionalTensor cells = prepared(gradients.cells, dtype);
  const OptionalTensor grad_output = prepared(gradients.grad_output, dtype);
  const OptionalTensor grad_h_n = prepared(gradients.grad_h_n, dtype);
  const OptionalTensor grad_c_n = prepared(gradients.grad_c_n, dtype);
  RecurrentResults results;
  const bool need_input = mask.input();
  const bool need_states = mask.states();
  results.grad_input = need_input ? like_input(shape, by_rows, place, shape.input_size, dtype) : nothing(place, dtype);
  results.grad_h_0 = allocate(need_states, place, {shape.batch, shape.hidden_size}, dtype);
  results.grad_c_0 = allocate(need_states && cell.has_c, place, {shape.batch, shape.hidden_size}, dtype);
  RecurrentBackward job{
      .layer = p.layer,
      .input = data_of(p.input),
      .h_0 = data_of(p.h_0),
      .c_0 = data_of(p.c_0),
      .output = data_of(output),
      .kept = data_of(kept),
      .cells = data_of(cells),
      .grad_output = data_of(grad_output),
      .grad_h_n = data_of(grad_h_n),
      .grad_c_n = data_of(grad_c_n),
      .need_input = need_input,
      .need_weights = weights.wanted,
      .need_states = need_states,
      .grad_h_0 = need_states ? out_data(results.grad_h_0) : nullptr,
      .grad_c_0 = need_states && cell.has_c ? out_data(results.grad_c_0) : nullptr,
      .grad_input = need_input ? out_data(results.grad_input) : nullptr,
      .grad_weight_ih = data_or_null(weights.weight_ih),
      .grad_weight_ih_leading_dim = leading_dim(weights.weight_ih),
      .grad_weight_hh = data_or_null(weights.weight_hh),
      .grad_weight_hh_leading_dim = leading_dim(weights.weight_hh),
      .grad_bias_ih = data_or_null(weights.bias_ih),
      .grad_bias_hh = data_or_null(weights.bias_hh),
  };
  if (shape.batch == 0) job.layer.time = 0;  // the weights' gradients are still zero and must be written
  const bool writes = shape.hidden_size > 0 || results.grad_input.numel() > 0;
  if (writes) kernels.backward(job);
  return {returned(need_input, results.grad_input, arguments.input),
          returned(mask.h_0(), results.grad_h_0, arguments.input),
          returned(mask.c_0(), results.grad_c_0, arguments.input)};
}

WeightGradients weight_gradients(
    const RecurrentKernels& kernels, const RecurrentCell& cell, const RecurrentShape& shape,
    const RecurrentArguments& arguments, const RecurrentMask& mask) {
  if (!mask.parameters()) return {};
  const Place place = place_of(arguments.input);
  const ScalarType dtype = dtype_of(kernels, shape, arguments.input);
  const int64_t rows = cell.gates * shape.hidden_size;
  const auto like = [&](const OptionalTensor& bias) {
    return bias ? OptionalTensor(empty(place, {rows}, dtype)) : std::nullopt;
  };
  return {true, empty(place, {rows, shape.input_size}, dtype), empty(place, {rows, shape.hidden_size}, dtype),
          like(arguments.bias_ih), like(arguments.bias_hh)};
}

}  // namespace fourfold
