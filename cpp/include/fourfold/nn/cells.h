// One step of a recurrent layer: x (batch, input_size) and states (batch, hidden_size); unbatched input has no batch
// dimension. The default state is zero.
#pragma once

#include <fourfold/nn/module.h>
#include <torch/nn/options/rnn.h>

namespace fourfold::nn {

using torch::nn::GRUCellOptions;
using torch::nn::LSTMCellOptions;

// Like torch::nn::LSTMCellOptions.
struct LLTMCellOptions {
  LLTMCellOptions(int64_t input_size, int64_t hidden_size) : input_size_(input_size), hidden_size_(hidden_size) {}

  TORCH_ARG(int64_t, input_size);
  TORCH_ARG(int64_t, hidden_size);
  TORCH_ARG(bool, bias) = true;
};

namespace detail {

template <typename Derived, typename Cell, typename Options>
class CellImpl : public torch::nn::Cloneable<Derived> {
 public:
  explicit CellImpl(const Options& given) : options(given) {
    enable_gradients();
    CellImpl::reset();
  }

  void reset() override {
    expect_size(Derived::kind, "input_size", options.input_size());
    expect_size(Derived::kind, "hidden_size", options.hidden_size());
    parameters_of_cell_ = register_cell<Cell>(*this, "", options.input_size(), options.hidden_size(), options.bias());
    reset_parameters();
  }

  void reset_parameters() { reset_uniform(*this, options.hidden_size()); }

  void pretty_print(std::ostream& stream) const override {
    stream << std::boolalpha << "fourfold::nn::" << Derived::kind << "(" << options.input_size() << ", "
           << options.hidden_size() << (options.bias() ? "" : ", bias=false") << ")";
  }

  Options options;

 protected:
  Tensors step(const Tensor& input, const Tensors& hx) const {
    if (input.dim() != 1 && input.dim() != 2) {
      refuse(Derived::kind, ": expected input to have 2 dimensions, or 1 when unbatched, but got shape ", input.sizes());
    }
    expect_features(Derived::kind, input, options.input_size());
    const bool batched = input.dim() == 2;
    const Tensor x = batched ? input : input.unsqueeze(0);
    const std::vector<int64_t> shape = {x.size(0), options.hidden_size()};
    Tensors states;
    for (const Tensor& state : hx) {
      states.push_back(batched ? state : state.unsqueeze(0));
      if (states.back().sizes() != at::IntArrayRef(shape)) {
        refuse(Derived::kind, ": expected each state to have shape (", batched ? "batch, " : "", "hidden_size) = ",
               at::IntArrayRef(shape).slice(batched ? 0 : 1), ", but got ", state.sizes());
      }
    }
    if (hx.empty()) states.resize(Cell::states, torch::zeros(shape, x.options().requires_grad(false)));
    Tensors next = run_step(Cell(), x, states, parameters_of_cell_);
    if (!batched) {
      for (Tensor& state : next) state = state.squeeze(0);
    }
    return next;
  }

 private:
  static Tensors run_step(LltmCell, const Tensor& x, const Tensors& states, const Tensors& p) {
    auto [h, c] = fourfold::lltm_cell(x, states[0], states[1], p[0], optional(p[1]));
    return {h, c};
  }

  // A sequence of length one.
  template <typename Other>
  static Tensors run_step(Other cell, const Tensor& x, const Tensors& states, const Tensors& p) {
    return run(cell, x.unsqueeze(0), states, p, {}).second;
  }

  Tensors parameters_of_cell_;
};

}  // namespace detail

class LLTMCellImpl : public detail::CellImpl<LLTMCellImpl, detail::LltmCell, LLTMCellOptions> {
 public:
  static constexpr const char* kind = "LLTMCell";
  using CellImpl::CellImpl;
  LLTMCellImpl(int64_t input_size, int64_t hidden_size) : LLTMCellImpl(LLTMCellOptions(input_size, hidden_size)) {}

  std::tuple<Tensor, Tensor> forward(const Tensor& input, std::optional<detail::Pair> hx = {}) {
    return detail::pair_of(step(input, detail::tensors_of(hx)));
  }

 protected:
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(std::optional<detail::Pair>())})
};

// Parameters and signature of torch::nn::LSTMCell.
class LSTMCellImpl : public detail::CellImpl<LSTMCellImpl, detail::LstmCell, LSTMCellOptions> {
 public:
  static constexpr const char* kind = "LSTMCell";
  using CellImpl::CellImpl;
  LSTMCellImpl(int64_t input_size, int64_t hidden_size) : LSTMCellImpl(LSTMCellOptions(input_size, hidden_size)) {}

  std::tuple<Tensor, Tensor> forward(const Tensor& input, std::optional<detail::Pair> hx = {}) {
    return detail::pair_of(step(input, detail::tensors_of(hx)));
  }

 protected:
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(std::optional<detail::Pair>())})
};

// Parameters and signature of torch::nn::GRUCell.
class GRUCellImpl : public detail::CellImpl<GRUCellImpl, detail::GruCell, GRUCellOptions> {
 public:
  static constexpr const char* kind = "GRUCell";
  using CellImpl::CellImpl;
  GRUCellImpl(int64_t input_size, int64_t hidden_size) : GRUCellImpl(GRUCellOptions(input_size, hidden_size)) {}

  Tensor forward(const Tensor& input, const Tensor& hx = {}) { return step(input, detail::tensors_of(hx))[0]; }

 protected:
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(Tensor())})
};

TORCH_MODULE(LLTMCell);
TORCH_MODULE(LSTMCell);
TORCH_MODULE(GRUCell);

}  // namespace fourfold::nn
