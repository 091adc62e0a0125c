// Shared by recurrent cells.
//
// A cell is a struct with these members:
//   gates   the number of weight rows of one hidden unit
//   kept    the number of a unit's values that the backward needs
//   grads   the number of a unit's gate gradients, stored in slots: those of the input's product are in the first
//           `gates` slots, those of the hidden product in the last ones; input_gate(slot) and hidden_gate(slot) map
//           slots to gates
//   has_c   whether the state that a step passes to the next is a c besides h; otherwise it is h itself
//   forward(input, hidden, state) -> {kept, h, state}, from the products with x and with h, each with its bias
//   backward(kept, state, next_state, grad_h, grad_next_state) -> {gates, state}, the gradients by slot and of state

template <typename T, int n>
struct Values {
  T v[n];
};

template <typename T, int kept_values>
struct CellStep {
  Values<T, kept_values> kept;
  T h;
  T state;
};

template <typename T, int grad_slots>
struct CellGradients {
  Values<T, grad_slots> gates;
  T state;
};
