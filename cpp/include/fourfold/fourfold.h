// fourfold's operators for programs on torch's C++ API: the functions of the Python package with the same arguments,
// defaults and results. Link libfourfold and any libtorch from 2.10 on. For gradients call enable_gradients() of
// fourfold/autograd.h once.
//
// docs/operators.md documents shapes, dtypes and formulas. Invalid arguments throw std::runtime_error with a message
// that names the operator and the argument.
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <fourfold/library.h>

#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

namespace fourfold {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

namespace detail {

// The operator of that name. Each caller looks it up once.
template <typename Signature>
c10::TypedOperatorHandle<Signature> operator_of(const char* name) {
  // This call also keeps the library linked: --as-needed drops a library from which the program uses no symbol.
  if (fourfold_abi_version() != FOURFOLD_ABI_VERSION) {
    throw std::runtime_error("fourfold: this program was compiled for ABI " + std::to_string(FOURFOLD_ABI_VERSION) +
                             " of libfourfold, but loads " + std::to_string(fourfold_abi_version()));
  }
  if (const char* error = fourfold_other_copy_error()) throw std::runtime_error(error);
  return c10::Dispatcher::singleton().findSchemaOrThrow((std::string("fourfold::") + name).c_str(), "").typed<Signature>();
}

inline bool requires_grad(const Tensor& tensor) { return tensor.defined() && tensor.requires_grad(); }
inline bool requires_grad(const OptionalTensor& tensor) { return tensor && requires_grad(*tensor); }
template <typename T>
bool requires_grad(const std::vector<T>& tensors) {
  for (const T& tensor : tensors) {
    if (requires_grad(tensor)) return true;
  }
  return false;
}

// Whether a backward may follow, so that the call has to save tensors for it.
template <typename... Tensors>
bool recording(const Tensors&... tensors) {
  return at::GradMode::is_enabled() && (requires_grad(tensors) || ...);
}

// If the operator has no gradient registered, makes a backward through these outputs throw: torch's engine would leave
// the gradients undefined.
template <typename Signature, typename... Outputs>
void expect_gradients(const c10::TypedOperatorHandle<Signature>& op, bool recorded, const Outputs&... outputs) {
  using c10::DispatchKey;
  if (!recorded || op.hasKernelForDispatchKey(DispatchKey::AutogradCPU) ||
      op.hasKernelForDispatchKey(DispatchKey::Autograd)) {
    return;
  }
  const auto refuse = [name = op.operator_name().name](const Tensor&) {
    throw std::runtime_error(name.substr(name.rfind(':') + 1) +
                             ": expected gradients to be enabled before the forward call; include fourfold/autograd.h in "
                             "one file and call fourfold::enable_gradients() once, before any operator");
  };
  const auto watch = [&refuse](const Tensor& output) {
    if (!output.is_floating_point()) return;
    if (!output.requires_grad()) output.requires_grad_();
    output.register_hook([refuse](const Tensor& gradient) { refuse(gradient); });
  };
  (watch(outputs), ...);
}

// torch's TF32 setting, which affects only GPUs.
inline bool allows_tf32(const Tensor& x) { return x.is_cuda() && at::globalContext().allowTF32CuBLAS(); }

using LayerWithCell = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>(
    const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, const OptionalTensor&,
    const OptionalTensor&, bool, const OptionalTensor&, const OptionalTensor&, const OptionalTensor&, bool, bool);
using Layer = std::tuple<Tensor, Tensor, Tensor>(
    const Tensor&, const Tensor&, const Tensor&, const Tensor&, const OptionalTensor&, const OptionalTensor&, bool,
    const OptionalTensor&, const OptionalTensor&, const OptionalTensor&, bool, bool);
using LltmLayer = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>(
    const Tensor&, const Tensor&, const Tensor&, const Tensor&, const OptionalTensor&, bool, const OptionalTensor&,
    const OptionalTensor&, const OptionalTensor&, bool, bool);

}  // namespace detail

// αx + βy, broadcast, with the dtype of alpha * x + beta * y.
inline Tensor axpby(const Tensor& x, const Tensor& y, const at::Scalar& alpha = 2, const at::Scalar& beta = 1) {
  static const auto op = detail::operator_of<Tensor(
      const Tensor&, const Tensor&, double, double, std::optional<at::ScalarType>)>("axpby");
  std::optional<at::ScalarType> dtype;
  if (x.scalar_type() != y.scalar_type() || !x.is_floating_point()) {
    const auto scaled = [](const Tensor& t, const at::Scalar& factor) {
      const std::vector<int64_t> shape(t.dim() == 0 ? 0 : 1, 0);
      return at::empty(shape, at::TensorOptions().dtype(at::result_type(t, factor)).device(at::kCPU));
    };
    dtype = at::result_type(scaled(x, alpha), scaled(y, beta));
  }
  Tensor output = op.call(x, y, alpha.toDouble(), beta.toDouble(), dtype);
  detail::expect_gradients(op, detail::recording(x, y), output);
  return output;
}

// x - λ if x > λ, x + λ if x < -λ, otherwise 0; NaN stays NaN.
inline Tensor softshrink(const Tensor& x, double lambd = 0.5) {
  static const auto op = detail::operator_of<Tensor(const Tensor&, double)>("softshrink");
  Tensor output = op.call(x, lambd);
  detail::expect_gradients(op, detail::recording(x), output);
  return output;
}

// One step of the LLTM: x (batch, input_size), h and c (batch, hidden_size),
// weights (3 * hidden_size, hidden_size + input_size) with h before x, bias (3 * hidden_size). Returns the next h and
// c.
inline std::tuple<Tensor, Tensor> lltm_cell(
    const Tensor& x, const Tensor& h, const Tensor& c, const Tensor& weights, const OptionalTensor& bias = {}) {
  static const auto op = detail::operator_of<std::tuple<Tensor, Tensor, Tensor>(
      const Tensor&, const Tensor&, const Tensor&, const Tensor&, const OptionalTensor&, bool)>("lltm_cell");
  const bool recorded = detail::recording(x, h, c, weights, bias);
  auto [next_h, next_c, kept] = op.call(x, h, c, weights, bias, recorded);
  detail::expect_gradients(op, recorded, next_h, next_c);
  return {std::move(next_h), std::move(next_c)};
}

// One layer over a whole sequence in one direction. input: (time, batch, input_size), or, packed, (rows, input_size)
// with batch_sizes (int64, on the CPU), the number of rows of each step. Returns the output and the state after the
// last step.
inline std::tuple<Tensor, std::tuple<Tensor, Tensor>> lltm(
    const Tensor& input, const Tensor& h_0, const Tensor& c_0, const Tensor& weights, const OptionalTensor& bias = {},
    bool reverse = false, const OptionalTensor& batch_sizes = {}, const OptionalTensor& reset = {},
    const OptionalTensor& prepacked = {}) {
  static const auto op = detail::operator_of<detail::LltmLayer>("lltm");
  const bool recorded = detail::recording(input, h_0, c_0, weights, bias);
  auto [output, h_n, c_n, kept, cells] = op.call(
      input, h_0, c_0, weights, bias, reverse, batch_sizes, reset, prepacked, detail::allows_tf32(input), recorded);
  detail::expect_gradients(op, recorded, output, h_n, c_n);
  return {std::move(output), {std::move(h_n), std::move(c_n)}};
}

// torch::nn::LSTM's layer: weight_ih (4 * hidden_size, input_size), gates in the order i, f, g, o.
inline std::tuple<Tensor, std::tuple<Tensor, Tensor>> lstm(
    const Tensor& input, const Tensor& h_0, const Tensor& c_0, const Tensor& weight_ih, const Tensor& weight_hh,
    const OptionalTensor& bias_ih = {}, const OptionalTensor& bias_hh = {}, bool reverse = false,
    const OptionalTensor& batch_sizes = {}, const OptionalTensor& reset = {}, const OptionalTensor& prepacked = {}) {
  static const auto op = detail::operator_of<detail::LayerWithCell>("lstm");
  const bool recorded = detail::recording(input, h_0, c_0, weight_ih, weight_hh, bias_ih, bias_hh);
  auto [output, h_n, c_n, kept, cells] = op.call(
      input, h_0, c_0, weight_ih, weight_hh, bias_ih, bias_hh, reverse, batch_sizes, reset, prepacked,
      detail::allows_tf32(input), recorded);
  detail::expect_gradients(op, recorded, output, h_n, c_n);
  return {std::move(output), {std::move(h_n), std::move(c_n)}};
}

// torch::nn::GRU's layer: weight_ih (3 * hidden_size, input_size), gates in the order r, z, n.
inline std::tuple<Tensor, Tensor> gru(
    const Tensor& input, const Tensor& h_0, const Tensor& weight_ih, const Tensor& weight_hh,
    const OptionalTensor& bias_ih = {}, const OptionalTensor& bias_hh = {}, bool reverse = false,
    const OptionalTensor& batch_sizes = {}, const OptionalTensor& reset = {}, const OptionalTensor& prepacked = {}) {
  static const auto op = detail::operator_of<detail::Layer>("gru");
  const bool recorded = detail::recording(input, h_0, weight_ih, weight_hh, bias_ih, bias_hh);
  auto [output, h_n, kept] = op.call(
      input, h_0, weight_ih, weight_hh, bias_ih, bias_hh, reverse, batch_sizes, reset, prepacked,
      detail::allows_tf32(input), recorded);
  detail::expect_gradients(op, recorded, output, h_n);
  return {std::move(output), std::move(h_n)};
}

// relu(x W₁ᵀ + b₁) W₂ᵀ + b₂ over the last dimension of x.
inline Tensor mlp(
    const Tensor& x, const Tensor& hidden_weights, const OptionalTensor& hidden_bias, const Tensor& output_weights,
    const OptionalTensor& output_bias) {
  static const auto op = detail::operator_of<std::tuple<Tensor, Tensor>(
      const Tensor&, const Tensor&, const OptionalTensor&, const Tensor&, const OptionalTensor&, bool)>("mlp");
  const bool recorded = detail::recording(x, hidden_weights, hidden_bias, output_weights, output_bias);
  Tensor output =
      std::get<0>(op.call(x, hidden_weights, hidden_bias, output_weights, output_bias, recorded));
  detail::expect_gradients(op, recorded, output);
  return output;
}

// Linear layers with an activation between them: relu, tanh, gelu or silu. If biases is empty, no layer has a bias.
inline Tensor mlp_layers(
    const Tensor& x, const std::vector<Tensor>& weights, std::vector<OptionalTensor> biases = {},
    const std::string& activation = "relu") {
  static const auto op = detail::operator_of<std::tuple<Tensor, Tensor>(
      const Tensor&, at::TensorList, const c10::List<OptionalTensor>&, c10::string_view, bool, bool)>("mlp_layers");
  if (biases.empty()) biases.resize(weights.size());
  const bool recorded = detail::recording(x, weights, biases);
  Tensor output = std::get<0>(op.call(
      x, weights, c10::List<OptionalTensor>(biases), activation, recorded, detail::recording(weights)));
  detail::expect_gradients(op, recorded, output);
  return output;
}

}  // namespace fourfold
