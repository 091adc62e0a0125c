#include "layer.h"

#include <torch/headeronly/util/BFloat16.h>

#include <random>

namespace fourfold {
namespace cpu {

FOURFOLD_CPU_CELL(lltm)
FOURFOLD_CPU_CELL(lstm)
FOURFOLD_CPU_CELL(gru)

}  // namespace cpu

namespace races {

template <const auto& kernels, const auto& in_bfloat16>
const cpu::CellKernels& kernels_of(Kind kind) {
  return kind == Kind::bfloat16 ? in_bfloat16() : kernels();
}

// Gates and saved values per cell: cpp/formulas.
const Cell cells[3] = {
    {"lltm", 3, 3, true, kernels_of<cpu::lltm_kernels, cpu::lltm_bfloat16_kernels>},
    {"lstm", 4, 4, true, kernels_of<cpu::lstm_kernels, cpu::lstm_bfloat16_kernels>},
    {"gru", 3, 4, false, kernels_of<cpu::gru_kernels, cpu::gru_bfloat16_kernels>},
};

template <typename S>
Layer<S>::Layer(const Cell& cell, const Shape& shape) : cell_(cell), shape_(shape) {
  // From all rows down to half of them.
  offsets_.push_back(0);
  for (int64_t t = 0; t < shape.time; ++t) {
    offsets_.push_back(offsets_.back() + shape.batch - (shape.uneven ? t * shape.batch / (2 * shape.time) : 0));
  }
  const int64_t rows = offsets_.back();
  std::mt19937 random(0);
  const auto values = [&](int64_t count) {
    std::uniform_real_distribution<double> some(-0.1, 0.1);
    std::vector<S> made(count);
    for (S& value : made) value = static_cast<S>(some(random));
    return made;
  };
  reset_ = std::make_unique<bool[]>(rows);
  for (int64_t row = 0; row < rows; ++row) reset_[row] = random() % 16 == 0;
  const int64_t gates = cell.gates * shape.hidden_size;
  const int64_t states = shape.batch * shape.hidden_size;
  weight_ih_ = values(gates * shape.input_size);
  weight_hh_ = values(gates * shape.hidden_size);
  bias_ih_ = values(gates);
  bias_hh_ = values(gates);
  input_ = values(rows * shape.input_size);
  h_0_ = values(states);
  c_0_ = values(states);
  grad_output_ = values(rows * shape.hidden_size);
  grad_h_n_ = values(states);
  grad_c_n_ = values(states);
}

template <typename S>
RecurrentLayer Layer<S>::description() const {
  RecurrentLayer layer{};
  layer.kind = shape_.kind;
  layer.time = shape_.time;
  layer.batch = shape_.batch;
  layer.input_size = shape_.input_size;
  layer.hidden_size = shape_.hidden_size;
  layer.reverse = shape_.uneven;
  layer.offsets = shape_.uneven ? offsets_.data() : nullptr;
  layer.reset = shape_.uneven ? reset_.get() : nullptr;
  layer.weight_ih = weight_ih_.data();
  layer.weight_ih_leading_dim = shape_.input_size;
  layer.weight_hh = weight_hh_.data();
  layer.weight_hh_leading_dim = shape_.hidden_size;
  layer.bias_ih = bias_ih_.data();
  layer.bias_hh = bias_hh_.data();
  return layer;
}

template <typename S>
Results<S> Layer<S>::run() const {
  const auto rows = static_cast<size_t>(offsets_.back());
  const auto hidden = static_cast<size_t>(shape_.hidden_size);
  Results<S> results;
  results.reserve(13);
  const auto out = [&](size_t count) { return results.emplace_back(count).data(); };
  const bool has_c = cell_.has_c;

  RecurrentForward forward{};
  forward.layer = description();
  forward.input = input_.data();
  forward.h_0 = h_0_.data();
  forward.c_0 = has_c ? c_0_.data() : nullptr;
  forward.output = out(rows * hidden);
  forward.h_n = out(h_0_.size());
  forward.c_n = has_c ? out(c_0_.size()) : nullptr;
  forward.keep = true;
  forward.kept = out(rows * hidden * cell_.kept);
  forward.cells = has_c ? out(rows * hidden) : nullptr;
  cell_.kernels(shape_.kind).forward(forward);

  RecurrentBackward backward{};
  backward.layer = forward.layer;
  backward.input = forward.input;
  backward.h_0 = forward.h_0;
  backward.c_0 = forward.c_0;
  backward.output = forward.output;
  backward.kept = forward.kept;
  backward.cells = forward.cells;
  backward.grad_output = grad_output_.data();
  backward.grad_h_n = grad_h_n_.data();
  backward.grad_c_n = has_c ? grad_c_n_.data() : nullptr;
  backward.need_input = true;
  backward.need_weights = true;
  backward.need_states = true;
  backward.grad_h_0 = out(h_0_.size());
  backward.grad_c_0 = has_c ? out(c_0_.size()) : nullptr;
  backward.grad_input = out(input_.size());
  backward.grad_weight_ih = out(weight_ih_.size());
  backward.grad_weight_ih_leading_dim = shape_.input_size;
  backward.grad_weight_hh = out(weight_hh_.size());
  backward.grad_weight_hh_leading_dim = shape_.hidden_size;
  backward.grad_bias_ih = out(bias_ih_.size());
  backward.grad_bias_hh = out(bias_hh_.size());
  cell_.kernels(shape_.kind).backward(backward);
  return results;
}

template class Layer<float>;
template class Layer<double>;
template class Layer<c10::BFloat16>;

}  // namespace races
}  // namespace fourfold
