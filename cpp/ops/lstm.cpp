#include "ops/lstm.h"

#include "ops/cells.h"
#include "ops/prepacked.h"
#include "ops/registration.h"

namespace fourfold {
namespace {

constexpr RecurrentCell cell = describe_cell<formulas::Lstm>("lstm", "lstm_backward");

}  // namespace

LstmOutputs lstm(
    const RecurrentKernels& kernels, const Tensor& input, const Tensor& h_0, const Tensor& c_0,
    const Tensor& weight_ih, const Tensor& weight_hh, const OptionalTensor& bias_ih, const OptionalTensor& bias_hh,
    bool reverse,
    const OptionalTensor& batch_sizes, const OptionalTensor& reset, const OptionalTensor& prepacked, bool allow_tf32,
    bool save_for_backward) {
  const RecurrentArguments arguments{input, h_0, c_0, weight_ih, weight_hh, bias_ih, bias_hh, reverse, batch_sizes,
                                     reset, allow_tf32};
  const RecurrentShape shape = check_arguments(cell.op, cell, arguments);
  const RecurrentOutputs out = run_forward(kernels, cell, shape, arguments, prepacked, save_for_backward);
  return {out.output, out.h_n, out.c_n, out.kept, out.cells};
}

LstmGradients lstm_backward(
    const RecurrentKernels& kernels, const OptionalTensor& grad_output, const OptionalTensor& grad_h_n,
    const OptionalTensor& grad_c_n, const Tensor& input, const Tensor& h_0, const Tensor& c_0,
    const Tensor& weight_ih, const Tensor& weight_hh, const OptionalTensor& bias_ih, const OptionalTensor& bias_hh,
    bool reverse,
    const OptionalTensor& batch_sizes, const OptionalTensor& reset, bool allow_tf32, const Tensor& output,
    const Tensor& kept, const Tensor& cells, const std::vector<bool>& output_mask) {
  const RecurrentArguments arguments{input, h_0, c_0, weight_ih, weight_hh, bias_ih, bias_hh, reverse, batch_sizes,
                                     reset, allow_tf32};
  const RecurrentShape shape = check_arguments(cell.backward_op, cell, arguments);
  const RecurrentMask mask(cell, output_mask, 4);
  const WeightGradients weights = weight_gradients(kernels, cell, shape, arguments, mask);
  const RecurrentResults grads = run_backward(
      kernels, cell, shape, arguments, {grad_output, grad_h_n, grad_c_n, output, kept, cells},
      weights, mask);
  const auto result = [&](size_t k, const OptionalTensor& grad) { return returned(mask.parameter(k), grad, input); };
  return {grads.grad_input, grads.grad_h_0, grads.grad_c_0, result(0, weights.weight_ih),
          result(1, weights.weight_hh), result(2, weights.bias_ih), result(3, weights.bias_hh)};
}

Tensor lstm_prepack(
    const RecurrentKernels& kernels, const Tensor& weight_ih, const Tensor& weight_hh, const OptionalTensor& bias_ih,
    const OptionalTensor& bias_hh) {
  return prepack_weights(kernels, cell, "lstm_prepack", {weight_ih, weight_hh, bias_ih, bias_hh});
}

}  // namespace fourfold

FOURFOLD_OPERATORS(m) {
  m.def(
      "lstm(Tensor input, Tensor h_0, Tensor c_0, Tensor weight_ih, Tensor weight_hh, Tensor? bias_ih=None,"
      " Tensor? bias_hh=None, bool reverse=False, Tensor? batch_sizes=None, Tensor? reset=None,"
      " Tensor? prepacked=None, bool allow_tf32=False, bool save_for_backward=True)"
      " -> (Tensor output, Tensor h_n, Tensor c_n, Tensor kept, Tensor cells)");
  m.def(
      "lstm_backward(Tensor? grad_output, Tensor? grad_h_n, Tensor? grad_c_n, Tensor input, Tensor h_0, Tensor c_0,"
      " Tensor weight_ih, Tensor weight_hh, Tensor? bias_ih, Tensor? bias_hh, bool reverse, Tensor? batch_sizes,"
      " Tensor? reset, bool allow_tf32, Tensor output, Tensor kept, Tensor cells, bool[] output_mask)"
      " -> (Tensor grad_input, Tensor grad_h_0, Tensor grad_c_0, Tensor grad_weight_ih, Tensor grad_weight_hh,"
      " Tensor grad_bias_ih, Tensor grad_bias_hh)");
  m.def("lstm_prepack(Tensor weight_ih, Tensor weight_hh, Tensor? bias_ih=None, Tensor? bias_hh=None) -> Tensor prepacked");
}
