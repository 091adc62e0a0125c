// Shared parts of the modules of fourfold/nn.h.
#pragma once

#include <fourfold/autograd.h>
#include <fourfold/fourfold.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/modules/common.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>

#include <cmath>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

namespace fourfold::nn::detail {

using Tensors = std::vector<Tensor>;

template <typename... Parts>
[[noreturn]] void refuse(const Parts&... parts) {
  std::ostringstream sentence;
  (sentence << ... << parts);
  throw std::runtime_error(sentence.str());
}

inline void expect_size(const char* module, const char* name, int64_t size) {
  if (size < 1) refuse(module, ": expected ", name, " to be at least 1, but got ", size);
}

inline void expect_features(const char* module, const Tensor& input, int64_t input_size) {
  if (input.dim() > 0 && input.size(-1) == input_size) return;
  refuse(module, ": expected the last dimension of the input to be input_size = ", input_size, ", but got shape ",
         input.sizes());
}

// The tutorials' initialisation: all parameters uniform within ±1/√hidden_size.
inline void reset_uniform(torch::nn::Module& module, int64_t hidden_size) {
  const torch::NoGradGuard no_grad;
  const double bound = 1 / std::sqrt(static_cast<double>(hidden_size));
  for (Tensor& parameter : module.parameters()) parameter.uniform_(-bound, bound);
}

struct Parameter {
  const char* name;
  std::vector<int64_t> shape;
};

// A cell is a type: its number of states, its parameters, and the operator that computes one layer in one direction.
struct LltmCell {
  static constexpr size_t states = 2;
  static constexpr bool needs_steps = false;
  static std::vector<Parameter> parameters(int64_t input_size, int64_t hidden_size) {
    return {{"weights", {3 * hidden_size, hidden_size + input_size}}, {"bias", {3 * hidden_size}}};
  }
};

// LSTM and GRU have torch::nn's parameters.
template <int64_t gates>
struct TorchCell {
  static constexpr bool needs_steps = true;
  static std::vector<Parameter> parameters(int64_t input_size, int64_t hidden_size) {
    const int64_t rows = gates * hidden_size;
    return {{"weight_ih", {rows, input_size}}, {"weight_hh", {rows, hidden_size}}, {"bias_ih", {rows}}, {"bias_hh", {rows}}};
  }
};
struct LstmCell : TorchCell<4> {
  static constexpr size_t states = 2;
};
struct GruCell : TorchCell<3> {
  static constexpr size_t states = 1;
};

// Registers a cell's parameters, named with a suffix, and returns them; without bias those entries are undefined.
template <typename Cell>
Tensors register_cell(
    torch::nn::Module& module, const std::string& suffix, int64_t input_size, int64_t hidden_size, bool bias) {
  Tensors registered;
  for (const Parameter& parameter : Cell::parameters(input_size, hidden_size)) {
    const std::string name = parameter.name;
    const bool left_out = !bias && name.rfind("bias", 0) == 0;
    registered.push_back(left_out ? Tensor() : module.register_parameter(name + suffix, torch::empty(parameter.shape)));
  }
  return registered;
}

inline OptionalTensor optional(const Tensor& tensor) { return tensor.defined() ? OptionalTensor(tensor) : std::nullopt; }

struct Sequence {
  bool reverse = false;
  OptionalTensor batch_sizes, reset;
};

// Returns the output and the states after the last step.
inline std::pair<Tensor, Tensors> run(LltmCell, const Tensor& x, const Tensors& states, const Tensors& p, const Sequence& s) {
  auto [output, state] =
      fourfold::lltm(x, states[0], states[1], p[0], optional(p[1]), s.reverse, s.batch_sizes, s.reset);
  return {output, {std::get<0>(state), std::get<1>(state)}};
}

inline std::pair<Tensor, Tensors> run(LstmCell, const Tensor& x, const Tensors& states, const Tensors& p, const Sequence& s) {
  auto [output, state] = fourfold::lstm(
      x, states[0], states[1], p[0], p[1], optional(p[2]), optional(p[3]), s.reverse, s.batch_sizes, s.reset);
  return {output, {std::get<0>(state), std::get<1>(state)}};
}

inline std::pair<Tensor, Tensors> run(GruCell, const Tensor& x, const Tensors& states, const Tensors& p, const Sequence& s) {
  auto [output, h_n] =
      fourfold::gru(x, states[0], p[0], p[1], optional(p[2]), optional(p[3]), s.reverse, s.batch_sizes, s.reset);
  return {output, {h_n}};
}

// A module's state is a Pair (h, c), or one tensor h.
using Pair = std::tuple<Tensor, Tensor>;

inline Tensors tensors_of(const std::optional<Pair>& hx) {
  return hx ? Tensors{std::get<0>(*hx), std::get<1>(*hx)} : Tensors{};
}
inline Tensors tensors_of(const Tensor& hx) { return hx.defined() ? Tensors{hx} : Tensors{}; }
inline Pair pair_of(Tensors states) { return {std::move(states[0]), std::move(states[1])}; }

}  // namespace fourfold::nn::detail
