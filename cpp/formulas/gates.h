// What recurrent cells share.
//
// A cell is a struct of these: `gates`, the rows of weights of one hidden unit; `kept`, the values of a unit that the
// backward needs; `grads`, the gate gradients of a unit, in slots: the gradients of the input's product are in the first
// `gates` slots, those of the hidden product in the last, and input_gate(slot), hidden_gate(slot) tell whose they are;
// `has_c`, whether the state that a step hands to the next is a c beside h, or h itself;
//   forward(input, hidden, state) -> {kept, h, state}, from the products with x and with h, each with its bias;
//   backward(kept, state, next_state, grad_h, grad_next_state) -> {gates, state}, the gradients by slot and of state.

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
