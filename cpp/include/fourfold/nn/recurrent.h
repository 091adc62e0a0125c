// LLTM, LSTM and GRU over whole sequences. An operator computes one layer in one direction; the modules stack layers
// and directions, with dropout between layers.
//
//   output, (h_n, c_n) = lstm(input, (h_0, c_0), reset), with D = 2 if bidirectional else 1
//     input               (time, batch, input_size), with batch_first (batch, time, input_size), or unbatched
//                         (time, input_size); forward_with_packed_input takes a PackedSequence
//     h_0, c_0, h_n, c_n  (D * num_layers, batch, hidden_size), unbatched (D * num_layers, hidden_size). The default
//                         is zero. A GRU has only h.
//     output              input's shape with last dimension D * hidden_size, packed if input is
//     reset               bool, input's shape without its last dimension, packed if input is: true where a new segment
//                         begins. Every layer then starts the step with a zero state; the reverse direction restarts
//                         at the last step of each segment.
#pragma once

#include <fourfold/nn/module.h>
#include <torch/nn/options/rnn.h>
#include <torch/nn/utils/rnn.h>

namespace fourfold::nn {

using torch::nn::GRUOptions;
using torch::nn::LSTMOptions;
using torch::nn::utils::rnn::PackedSequence;

// Like torch::nn::LSTMOptions, without proj_size.
struct LLTMOptions {
  LLTMOptions(int64_t input_size, int64_t hidden_size) : input_size_(input_size), hidden_size_(hidden_size) {}

  TORCH_ARG(int64_t, input_size);
  TORCH_ARG(int64_t, hidden_size);
  TORCH_ARG(int64_t, num_layers) = 1;
  TORCH_ARG(bool, bias) = true;
  TORCH_ARG(bool, batch_first) = false;
  TORCH_ARG(double, dropout) = 0.0;
  TORCH_ARG(bool, bidirectional) = false;
};

namespace detail {

// Where the reverse direction restarts: at the last step of each segment, just before a reset.
inline OptionalTensor reset_of_reverse(const OptionalTensor& reset, const OptionalTensor& batch_sizes) {
  if (!reset || reset->size(0) == 0) return reset;
  Tensor moved = torch::zeros_like(*reset);
  if (!batch_sizes) {
    moved.narrow(0, 0, reset->size(0) - 1).copy_(reset->narrow(0, 1, reset->size(0) - 1));
    return moved;
  }
  // Each row of step t moves to the same sequence's row of step t - 1, batch_sizes[t - 1] rows earlier.
  const int64_t steps = batch_sizes->size(0);
  const Tensor earlier = torch::repeat_interleave(batch_sizes->narrow(0, 0, steps - 1), batch_sizes->narrow(0, 1, steps - 1));
  const int64_t first = reset->size(0) - earlier.size(0);
  const Tensor rows = torch::arange(first, reset->size(0), earlier.options());
  moved.index_copy_(0, (rows - earlier).to(reset->device()), reset->narrow(0, first, earlier.size(0)));
  return moved;
}

template <typename Derived, typename Cell, typename Options>
class RecurrentImpl : public torch::nn::Cloneable<Derived> {
 public:
  explicit RecurrentImpl(const Options& given) : options(given) {
    enable_gradients();
    RecurrentImpl::reset();
  }

  void reset() override {
    check_options();
    layers_.clear();
    for (int64_t layer = 0; layer < options.num_layers(); ++layer) {
      const int64_t input_size = layer == 0 ? options.input_size() : options.hidden_size() * directions();
      for (const char* direction : {"", "_reverse"}) {
        if (*direction && !options.bidirectional()) continue;
        const std::string suffix = "_l" + std::to_string(layer) + direction;
        layers_.push_back(register_cell<Cell>(*this, suffix, input_size, options.hidden_size(), options.bias()));
      }
    }
    reset_parameters();
  }

  void reset_parameters() { reset_uniform(*this, options.hidden_size()); }

  void pretty_print(std::ostream& stream) const override {
    stream << std::boolalpha << "fourfold::nn::" << Derived::kind << "(input_size=" << options.input_size()
           << ", hidden_size=" << options.hidden_size() << ", num_layers=" << options.num_layers()
           << ", bias=" << options.bias() << ", batch_first=" << options.batch_first()
           << ", dropout=" << options.dropout() << ", bidirectional=" << options.bidirectional() << ")";
  }

  Options options;

 protected:
  std::pair<Tensor, Tensors> run_input(const Tensor& input, const Tensors& hx, const OptionalTensor& reset) const {
    if (input.dim() != 2 && input.dim() != 3) {
      refuse(Derived::kind, ": expected input to have 3 dimensions, or 2 when unbatched, but got shape ", input.sizes());
    }
    expect_features(Derived::kind, input, options.input_size());
    const bool batched = input.dim() == 3, swapped = batched && options.batch_first();
    Tensor x = batched ? input : input.unsqueeze(1);
    if (swapped) x = x.transpose(0, 1);
    if (Cell::needs_steps && x.size(0) == 0) refuse(Derived::kind, ": expected at least one time step, but got none");
    auto [output, states] = run_layers(x, initial(hx, x, x.size(1), batched), {}, lay_out(reset, input));
    if (swapped) output = output.transpose(0, 1);
    if (batched) return {output, states};
    for (Tensor& state : states) state = state.squeeze(1);
    return {output.squeeze(1), states};
  }

  std::pair<PackedSequence, Tensors> run_packed(
      const PackedSequence& input, const Tensors& hx, const std::optional<PackedSequence>& reset) const {
    expect_features(Derived::kind, input.data(), options.input_size());
    const int64_t batch = input.batch_sizes().numel() == 0 ? 0 : input.batch_sizes()[0].template item<int64_t>();
    Tensors states = initial(hx, input.data(), batch, /*batched=*/true);
    if (!hx.empty()) reorder(states, input.sorted_indices());
    auto [output, final] = run_layers(input.data(), states, input.batch_sizes(), lay_out_packed(reset, input));
    reorder(final, input.unsorted_indices());
    return {PackedSequence(output, input.batch_sizes(), input.sorted_indices(), input.unsorted_indices()), final};
  }

 private:
  int64_t directions() const { return options.bidirectional() ? 2 : 1; }

  void check_options() const {
    expect_size(Derived::kind, "input_size", options.input_size());
    expect_size(Derived::kind, "hidden_size", options.hidden_size());
    expect_size(Derived::kind, "num_layers", options.num_layers());
    if (!(options.dropout() >= 0 && options.dropout() <= 1)) {
      refuse(Derived::kind, ": expected dropout to be a number in [0, 1], but got ", options.dropout());
    }
    if (options.dropout() > 0 && options.num_layers() == 1) {
      TORCH_WARN(Derived::kind, ": dropout=", options.dropout(),
                 " has no effect with num_layers=1: it acts between layers");
    }
  }

  Tensors initial(const Tensors& hx, const Tensor& x, int64_t batch, bool batched) const {
    std::vector<int64_t> shape = {options.num_layers() * directions(), batch, options.hidden_size()};
    if (hx.empty()) return Tensors(Cell::states, torch::zeros(shape, x.options().requires_grad(false)));
    if (!batched) shape.erase(shape.begin() + 1);
    Tensors states;
    for (size_t k = 0; k < hx.size(); ++k) {
      if (hx[k].sizes() != at::IntArrayRef(shape)) {
        refuse(Derived::kind, ": expected ", k == 0 ? "h_0" : "c_0", " to have shape (num_layers * num_directions, ",
               batched ? "batch, " : "", "hidden_size) = ", at::IntArrayRef(shape), ", but got ", hx[k].sizes());
      }
      states.push_back(batched ? hx[k] : hx[k].unsqueeze(1));
    }
    return states;
  }

  // The mask in the operators' layout, time first.
  OptionalTensor lay_out(const OptionalTensor& reset, const Tensor& input) const {
    if (!reset || !reset->defined()) return std::nullopt;
    if (reset->scalar_type() != torch::kBool) {
      refuse(Derived::kind, ": expected reset to have dtype bool, but got ", reset->scalar_type());
    }
    if (reset->sizes() != input.sizes().slice(0, input.dim() - 1)) {
      refuse(Derived::kind, ": expected reset to have the input's shape without its last dimension, ",
             input.sizes().slice(0, input.dim() - 1), ", but got ", reset->sizes());
    }
    if (input.dim() == 2) return reset->unsqueeze(1);
    return options.batch_first() ? reset->transpose(0, 1) : *reset;
  }

  static OptionalTensor lay_out_packed(const std::optional<PackedSequence>& reset, const PackedSequence& input) {
    if (!reset) return std::nullopt;
    const auto same = [](const Tensor& a, const Tensor& b) {
      return a.defined() == b.defined() && (!a.defined() || a.is_same(b) || torch::equal(a.to(b.device()), b));
    };
    const Tensor& mask = reset->data();
    if (mask.scalar_type() != torch::kBool || mask.dim() != 1 || mask.size(0) != input.data().size(0) ||
        !same(reset->batch_sizes(), input.batch_sizes()) || !same(reset->sorted_indices(), input.sorted_indices())) {
      refuse(Derived::kind, ": expected reset to be a PackedSequence of bools with one for each step of the input, packed "
                            "as the input is packed, with the same lengths and the same enforce_sorted");
    }
    return mask;
  }

  static void reorder(Tensors& states, const Tensor& indices) {
    if (!indices.defined()) return;
    for (Tensor& state : states) state = state.index_select(1, indices);
  }

  // x: (time, batch, input_size), or (rows, input_size) when packed. states: each (num_layers * directions, batch, hidden_size).
  std::pair<Tensor, Tensors> run_layers(
      Tensor x, const Tensors& states, const OptionalTensor& batch_sizes, const OptionalTensor& reset) const {
    const bool both = options.bidirectional();
    const OptionalTensor resets[] = {reset, both ? reset_of_reverse(reset, batch_sizes) : std::nullopt};
    std::vector<Tensors> columns(Cell::states);
    for (int64_t layer = 0; layer < options.num_layers(); ++layer) {
      Tensors outputs;
      for (int64_t direction = 0; direction < directions(); ++direction) {
        const int64_t k = layer * directions() + direction;
        Tensors given;
        for (const Tensor& state : states) given.push_back(state.select(0, k));
        auto [output, final] = run(Cell(), x, given, layers_[k], {direction == 1, batch_sizes, resets[direction]});
        outputs.push_back(output);
        for (size_t s = 0; s < Cell::states; ++s) columns[s].push_back(final[s]);
      }
      x = both ? torch::cat(outputs, -1) : outputs[0];
      if (options.dropout() > 0 && layer < options.num_layers() - 1) {
        x = torch::dropout(x, options.dropout(), this->is_training());
      }
    }
    Tensors final;
    for (const Tensors& column : columns) final.push_back(torch::stack(column));
    return {x, final};
  }

  std::vector<Tensors> layers_;  // the parameters of each layer and direction, in the states' order
};

// Layers with the states h and c.
template <typename Derived, typename Cell, typename Options>
class PairImpl : public RecurrentImpl<Derived, Cell, Options> {
 public:
  using RecurrentImpl<Derived, Cell, Options>::RecurrentImpl;

  std::tuple<Tensor, Pair> forward(const Tensor& input, std::optional<Pair> hx = {}, OptionalTensor reset = {}) {
    auto [output, states] = this->run_input(input, tensors_of(hx), reset);
    return {output, pair_of(states)};
  }

  std::tuple<PackedSequence, Pair> forward_with_packed_input(
      const PackedSequence& input, std::optional<Pair> hx = {}, std::optional<PackedSequence> reset = {}) {
    auto [output, states] = this->run_packed(input, tensors_of(hx), reset);
    return {output, pair_of(states)};
  }

 protected:
  FORWARD_HAS_DEFAULT_ARGS(
      {1, torch::nn::AnyValue(std::optional<Pair>())}, {2, torch::nn::AnyValue(OptionalTensor())})
};

}  // namespace detail

class LLTMImpl : public detail::PairImpl<LLTMImpl, detail::LltmCell, LLTMOptions> {
 public:
  static constexpr const char* kind = "LLTM";
  using PairImpl::PairImpl;
  LLTMImpl(int64_t input_size, int64_t hidden_size) : LLTMImpl(LLTMOptions(input_size, hidden_size)) {}
};

// Parameters and signature of torch::nn::LSTM without proj_size, plus reset.
class LSTMImpl : public detail::PairImpl<LSTMImpl, detail::LstmCell, LSTMOptions> {
 public:
  static constexpr const char* kind = "LSTM";
  explicit LSTMImpl(const LSTMOptions& given) : PairImpl(without_projection(given)) {}
  LSTMImpl(int64_t input_size, int64_t hidden_size) : LSTMImpl(LSTMOptions(input_size, hidden_size)) {}

 private:
  static const LSTMOptions& without_projection(const LSTMOptions& given) {
    if (given.proj_size() == 0) return given;
    detail::refuse("LSTM: expected proj_size to be 0, but got ", given.proj_size(),
                   "; a projected LSTM is torch::nn::LSTM's alone");
  }
};

// Parameters and signature of torch::nn::GRU, plus reset.
class GRUImpl : public detail::RecurrentImpl<GRUImpl, detail::GruCell, GRUOptions> {
 public:
  static constexpr const char* kind = "GRU";
  using RecurrentImpl::RecurrentImpl;
  GRUImpl(int64_t input_size, int64_t hidden_size) : GRUImpl(GRUOptions(input_size, hidden_size)) {}

  std::tuple<Tensor, Tensor> forward(const Tensor& input, Tensor hx = {}, OptionalTensor reset = {}) {
    auto [output, states] = run_input(input, detail::tensors_of(hx), reset);
    return {output, states[0]};
  }

  std::tuple<PackedSequence, Tensor> forward_with_packed_input(
      const PackedSequence& input, Tensor hx = {}, std::optional<PackedSequence> reset = {}) {
    auto [output, states] = run_packed(input, detail::tensors_of(hx), reset);
    return {output, states[0]};
  }

 protected:
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(Tensor())}, {2, torch::nn::AnyValue(OptionalTensor())})
};

TORCH_MODULE(LLTM);
TORCH_MODULE(LSTM);
TORCH_MODULE(GRU);

}  // namespace fourfold::nn
