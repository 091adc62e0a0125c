#include "ops/recurrent_products.h"

namespace fourfold {
namespace {

int64_t rows_of(const RecurrentLayer& layer) { return first_row(layer, layer.time); }

Tensor weight_ih_of(const RecurrentLayer& layer, int64_t gates) {
  return matrix(layer.place, layer.weight_ih, gates * layer.hidden_size, layer.input_size,
                layer.weight_ih_leading_dim, layer.kind);
}

// weight_ih (gates * hidden_size, input_size) with its gates permuted to the slots' order, so that one product is
// enough.
Tensor in_slot_order(const RecurrentLayer& layer, const GradientSlots& slots) {
  const int64_t size = layer.hidden_size;
  const Tensor weights = weight_ih_of(layer, slots.gates);
  if (slots.input.size() == 1) return weights;
  const Tensor ordered = empty(layer.place, {slots.gates * size, layer.input_size}, dtype_of(layer.kind));
  for (const GateRun& run : slots.input) {
    copy_into(narrow(ordered, 0, run.slot * size, run.count * size),
              narrow(weights, 0, run.gate * size, run.count * size));
  }
  return ordered;
}

// Copies the runs' parts of the slots' sums (slots * hidden_size) into a bias's gradient, if there is one.
void copy_bias(
    const RecurrentLayer& layer, const GradientSlots& slots, Output bias, const Tensor& sums,
    const std::vector<GateRun>& runs) {
  if (bias == nullptr) return;
  const int64_t size = layer.hidden_size;
  const int64_t columns = slots.gates * size;
  const Tensor to = view(matrix(layer.place, bias, 1, columns, columns, layer.kind), {columns});
  for (const GateRun& run : runs) {
    copy_into(narrow(to, 0, run.gate * size, run.count * size), narrow(sums, 0, run.slot * size, run.count * size));
  }
}

}  // namespace

Tensor input_projection(const RecurrentForward& job, int64_t gates) {
  const RecurrentLayer& layer = job.layer;
  const int64_t columns = gates * layer.hidden_size;
  OptionalTensor bias;
  if (layer.bias_ih != nullptr) {
    bias = view(matrix(layer.place, layer.bias_ih, 1, columns, columns, layer.kind), {columns});
  }
  const Tensor input =
      matrix(layer.place, job.input, rows_of(layer), layer.input_size, layer.input_size, layer.kind);
  return linear(input, weight_ih_of(layer, gates), bias);
}

void finish_gradients(
    const RecurrentBackward& job, const GradientSlots& slots, const Tensor& grad_gates, const OptionalTensor& previous_h,
    void (*multiply)(const Tensor& out, const Tensor& a, const Tensor& b)) {
  const RecurrentLayer& layer = job.layer;
  const int64_t size = layer.hidden_size;
  const int64_t inputs = layer.input_size;
  const int64_t first_hidden = slots.slots - slots.gates;
  const auto gradients = [&](int64_t slot, int64_t count) { return narrow(grad_gates, 1, slot * size, count * size); };
  const auto rows = [&](Input data) { return matrix(layer.place, data, rows_of(layer), inputs, inputs, layer.kind); };
  if (job.need_input) multiply(rows(job.grad_input), gradients(0, slots.gates), in_slot_order(layer, slots));
  if (!job.need_weights) return;
  const Tensor grad_ih =
      matrix(layer.place, job.grad_weight_ih, slots.gates * size, inputs, job.grad_weight_ih_leading_dim, layer.kind);
  for (const GateRun& run : slots.input) {
    multiply(narrow(grad_ih, 0, run.gate * size, run.count * size), transposed(gradients(run.slot, run.count)),
             rows(job.input));
  }
  multiply(
      matrix(layer.place, job.grad_weight_hh, slots.gates * size, size, job.grad_weight_hh_leading_dim, layer.kind),
      transposed(gradients(first_hidden, slots.gates)), *previous_h);
  if (job.grad_bias_ih == nullptr && job.grad_bias_hh == nullptr) return;
  const Tensor sums = sum_rows(grad_gates);
  copy_bias(layer, slots, job.grad_bias_ih, sums, slots.input);
  copy_bias(layer, slots, job.grad_bias_hh, sums, {{first_hidden, 0, slots.gates}});
}

}  // namespace fourfold
