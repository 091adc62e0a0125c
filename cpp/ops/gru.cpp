#include "ops/gru.h"

#include <torch/csrc/stable/library.h>

#include "ops/backend.h"
#include "ops/cpu_recurrent.h"
#include "ops/packed.h"

namespace fourfold {
namespace {

constexpr RecurrentCell cell{"gru", "gru_backward", 3, 4, false};

}  // namespace

GruOutputs gru(
    const RecurrentKernels& kernels, const Tensor& input, const Tensor& h_0, const Tensor& weight_ih,
    const Tensor& weight_hh, const OptionalTensor& bias_ih, const OptionalTensor& bias_hh, bool reverse, const OptionalTensor& batch_sizes, bool save_for_backward, bool allow_tf32,
    const OptionalTensor& reset, const OptionalTensor& packed) {
  const RecurrentArguments arguments{input, h_0, std::nullopt, weight_ih, weight_hh, bias_ih, bias_hh, reverse,
                                     batch_sizes, reset, allow_tf32};
  const RecurrentShape shape = check_arguments(cell.op, cell, arguments);
  const RecurrentOutputs out = run_forward(kernels, cell, shape, arguments, packed, save_for_backward);
  return {out.output, out.h_n, out.kept};
}

GruGradients gru_backward(
    const RecurrentKernels& kernels, const OptionalTensor& grad_output, const OptionalTensor& grad_h_n,
    const Tensor& input, const Tensor& h_0, const Tensor& weight_ih,
    const Tensor& weight_hh, const OptionalTensor& bias_ih, const OptionalTensor& bias_hh, bool reverse, const OptionalTensor& batch_sizes, const Tensor& output,
    const Tensor& gates, bool need_input, bool need_weights, bool allow_tf32,
    const OptionalTensor& reset, bool need_states) {
  const RecurrentArguments arguments{input, h_0, std::nullopt, weight_ih, weight_hh, bias_ih, bias_hh, reverse,
                                     batch_sizes, reset, allow_tf32};
  const RecurrentShape shape = check_arguments(cell.backward_op, cell, arguments);
  const WeightGradients weights = weight_gradients(kernels, cell, shape, arguments, need_weights);
  const RecurrentResults grads = run_backward(
      kernels, cell, shape, arguments, {grad_output, grad_h_n, std::nullopt, output, gates, std::nullopt},
      weights, need_input, need_states);
  const auto result = [&](const OptionalTensor& gradient) { return returned(gradient, input); };
  return {grads.grad_input, grads.grad_h_0, result(weights.weight_ih),
          result(weights.weight_hh), result(weights.bias_ih), result(weights.bias_hh)};
}

Tensor gru_pack(
    const RecurrentKernels& kernels, const Tensor& weight_ih, const Tensor& weight_hh, const OptionalTensor& bias_ih,
    const OptionalTensor& bias_hh) {
  return pack_weights(kernels, cell, "gru_pack", {weight_ih, weight_hh, bias_ih, bias_hh});
}

namespace {

constexpr RecurrentKernels cpu_kernels = gru_on_cpu;

}  // namespace
}  // namespace fourfold

STABLE_TORCH_LIBRARY_FRAGMENT(fourfold, m) {
  m.def(
      "gru(Tensor input, Tensor h_0, Tensor weight_ih, Tensor weight_hh, Tensor? bias_ih=None,"
      " Tensor? bias_hh=None, bool reverse=False, Tensor? batch_sizes=None,"
      " bool save_for_backward=True, bool allow_tf32=False, Tensor? reset=None, Tensor? packed=None)"
      " -> (Tensor output, Tensor h_n, Tensor gates)");
  m.def(
      "gru_backward(Tensor? grad_output, Tensor? grad_h_n, Tensor input, Tensor h_0,"
      " Tensor weight_ih, Tensor weight_hh, Tensor? bias_ih, Tensor? bias_hh, bool reverse, Tensor? batch_sizes,"
      " Tensor output, Tensor gates, bool need_input=True, bool need_weights=True,"
      " bool allow_tf32=False, Tensor? reset=None, bool need_states=True)"
      " -> (Tensor grad_input, Tensor grad_h_0, Tensor grad_weight_ih, Tensor grad_weight_hh,"
      " Tensor grad_bias_ih, Tensor grad_bias_hh)");
  m.def("gru_pack(Tensor weight_ih, Tensor weight_hh, Tensor? bias_ih=None, Tensor? bias_hh=None) -> Tensor packed");
}

STABLE_TORCH_LIBRARY_IMPL(fourfold, CPU, m) {
  m.impl("gru", FOURFOLD_BOX(gru, cpu_kernels));
  m.impl("gru_backward", FOURFOLD_BOX(gru_backward, cpu_kernels));
  m.impl("gru_pack", FOURFOLD_BOX(gru_pack, cpu_kernels));
}
