// The C++ baseline: as in the extension tutorials, one ATen call after another, without kernels.

// Only the parts of torch/extension.h that are used here: it compiles in half the time.
#include <ATen/ATen.h>
#include <torch/csrc/utils/pybind.h>

#include <vector>

// x (B, I), h and c (B, H), weights (3H, H+I), bias (3H): returns the next h and c, then the saved tensors for
// backward.
std::vector<at::Tensor> lltm_forward(
    const at::Tensor& x, const at::Tensor& h, const at::Tensor& c, const at::Tensor& weights, const at::Tensor& bias) {
  auto X = at::cat({h, x}, 1);
  auto gates = at::addmm(bias, X, weights.t()).chunk(3, 1);
  auto input_gate = at::sigmoid(gates[0]);
  auto output_gate = at::sigmoid(gates[1]);
  auto candidate = at::elu(gates[2]);
  auto new_c = c + candidate * input_gate;
  auto tanh_c = at::tanh(new_c);
  return {tanh_c * output_gate, new_c, X, input_gate, output_gate, candidate, tanh_c};
}

// The gradients of x, h, c, weights and bias.
std::vector<at::Tensor> lltm_backward(
    const at::Tensor& grad_h,
    const at::Tensor& grad_new_c,
    const at::Tensor& weights,
    const at::Tensor& X,
    const at::Tensor& input_gate,
    const at::Tensor& output_gate,
    const at::Tensor& candidate,
    const at::Tensor& tanh_c) {
  auto grad_c = grad_new_c + grad_h * output_gate * (1 - tanh_c * tanh_c);
  auto grad_input_gate = grad_c * candidate * input_gate * (1 - input_gate);
  auto grad_output_gate = grad_h * tanh_c * output_gate * (1 - output_gate);
  // elu's derivative is 1 above zero and exp(gate) = elu + 1 below: its value plus one, but at most 1.
  auto grad_candidate = grad_c * input_gate * (candidate + 1).clamp_max(1);
  auto grad_gates = at::cat({grad_input_gate, grad_output_gate, grad_candidate}, 1);
  auto grad_X = grad_gates.mm(weights);
  auto hidden_size = grad_h.size(1);
  return {
      grad_X.slice(1, hidden_size), grad_X.slice(1, 0, hidden_size), grad_c, grad_gates.t().mm(X), grad_gates.sum(0)};
}

// x (B, I), hidden_weights (H, I), hidden_bias (1, H), output_weights (O, H), output_bias (1, O): the output (B, O)
// and the hidden layer (B, H).
std::vector<at::Tensor> mlp_forward(
    const at::Tensor& x,
    const at::Tensor& hidden_weights,
    const at::Tensor& hidden_bias,
    const at::Tensor& output_weights,
    const at::Tensor& output_bias) {
  auto hidden = at::relu(at::addmm(hidden_bias, x, hidden_weights.t()));
  return {at::addmm(output_bias, hidden, output_weights.t()), hidden};
}

// The gradients of x, hidden_weights, hidden_bias, output_weights and output_bias.
std::vector<at::Tensor> mlp_backward(
    const at::Tensor& grad_output,
    const at::Tensor& x,
    const at::Tensor& hidden,
    const at::Tensor& hidden_weights,
    const at::Tensor& output_weights) {
  auto grad_hidden = at::threshold_backward(grad_output.mm(output_weights), hidden, 0);
  return {
      grad_hidden.mm(hidden_weights),
      grad_hidden.t().mm(x),
      grad_hidden.sum(0, true),
      grad_output.t().mm(hidden),
      grad_output.sum(0, true)};
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("lltm_forward", &lltm_forward);
  m.def("lltm_backward", &lltm_backward);
  m.def("mlp_forward", &mlp_forward);
  m.def("mlp_backward", &mlp_backward);
}
