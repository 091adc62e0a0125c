// The LSTM's cell, as torch.nn.LSTM defines it:
//   c' = σ(f) c + σ(i) tanh(g),  h' = σ(o) tanh(c'),  with [i, f, g, o] = W_ih x + b_ih + W_hh h + b_hh.
// Needs gates.h, and sigmoid and tanh for T.

struct Lstm {
  FOURFOLD_CONSTANT int gates = 4, kept = 4, grads = 4;  // i, f, g, o; kept after activation
  FOURFOLD_CONSTANT bool has_c = true;
  static constexpr int input_gate(int slot) { return slot; }
  static constexpr int hidden_gate(int slot) { return slot; }

  template <typename T>
  static FOURFOLD_FN CellStep<T, kept> forward(Values<T, gates> input, Values<T, gates> hidden, T c) {
    CellStep<T, kept> s;
    s.kept.v[0] = sigmoid(input.v[0] + hidden.v[0]);
    s.kept.v[1] = sigmoid(input.v[1] + hidden.v[1]);
    s.kept.v[2] = tanh(input.v[2] + hidden.v[2]);
    s.kept.v[3] = sigmoid(input.v[3] + hidden.v[3]);
    s.state = s.kept.v[1] * c + s.kept.v[0] * s.kept.v[2];
    s.h = s.kept.v[3] * tanh(s.state);
    return s;
  }

  template <typename T>
  static FOURFOLD_FN CellGradients<T, grads> backward(Values<T, kept> kept, T c, T next_c, T grad_h, T grad_next_c) {
    const T i = kept.v[0];
    const T f = kept.v[1];
    const T g = kept.v[2];
    const T o = kept.v[3];
    const T t = tanh(next_c);
    const T grad_c = grad_next_c + grad_h * o * (T(1) - t * t);
    CellGradients<T, grads> s;
    s.gates.v[0] = grad_c * g * i * (T(1) - i);
    s.gates.v[1] = grad_c * c * f * (T(1) - f);
    s.gates.v[2] = grad_c * i * (T(1) - g * g);
    s.gates.v[3] = grad_h * t * o * (T(1) - o);
    s.state = grad_c * f;
    return s;
  }
};
