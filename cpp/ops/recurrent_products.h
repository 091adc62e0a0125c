// The products of a recurrent layer that GPU backends compute by torch (the vendor's libraries): the input's projection
// for all steps, and the gradients that follow from those of the gates.
#pragma once

#include <vector>

#include "ops/recurrent.h"

namespace fourfold {

// input weight_ihᵀ + bias_ih for all steps: (rows, gates * hidden_size).
Tensor input_projection(const RecurrentForward& job, int64_t gates);

// `count` gates of weight_ih from `gate` on. Their gradients are in the slots from `slot` on.
struct GateRun {
  int64_t slot;
  int64_t gate;
  int64_t count;
};

// The slots of a cell's gradients (cpp/formulas/gates.h). Those of the recurrent part are in weight_hh's order.
struct GradientSlots {
  int64_t gates;
  int64_t slots;
  std::vector<GateRun> input;
};

template <typename Cell>
GradientSlots gradient_slots() {
  static_assert(Cell::hidden_gate(Cell::grads - Cell::gates) == 0);
  GradientSlots result{Cell::gates, Cell::grads, {}};
  for (int slot = 0; slot < Cell::gates; ++slot) {
    const int gate = Cell::input_gate(slot);
    if (!result.input.empty() && result.input.back().gate + result.input.back().count == gate) {
      ++result.input.back().count;
    } else {
      result.input.push_back({slot, gate, 1});
    }
  }
  return result;
}

// Computes the gradients of input, weights and biases from grad_gates (rows, slots * hidden_size) and, for the weights,
// previous_h (rows, hidden_size), the h before each row's step. `multiply` writes a product into `out`, which may be a
// block of a wider matrix.
void finish_gradients(
    const RecurrentBackward& job, const GradientSlots& slots, const Tensor& grad_gates, const OptionalTensor& previous_h,
    void (*multiply)(const Tensor& out, const Tensor& a, const Tensor& b) = mm_into);

}  // namespace fourfold
