// The LLTM's cell, for a single step and for the steps of a sequence:
//   c' = c + σ(i) elu(g),  h' = σ(o) tanh(c'),  with [i, o, g] = W [h, x] + b.
// Needs gates.h, and sigmoid, expm1, tanh and select(mask, yes, no) for T.

template <typename T>
FOURFOLD_FN T elu(T x) {
  return select(x >= T(0), x, expm1(x));  // keeps -0
}

struct Lltm {
  FOURFOLD_CONSTANT int gates = 3, kept = 3, grads = 3;  // i, o, g; kept after activation
  FOURFOLD_CONSTANT bool has_c = true;
  static constexpr int input_gate(int slot) { return slot; }
  static constexpr int hidden_gate(int slot) { return slot; }

  template <typename T>
  static FOURFOLD_FN CellStep<T, kept> forward(Values<T, gates> input, Values<T, gates> hidden, T c) {
    CellStep<T, kept> s;
    s.kept.v[0] = sigmoid(input.v[0] + hidden.v[0]);
    s.kept.v[1] = sigmoid(input.v[1] + hidden.v[1]);
    s.kept.v[2] = elu(input.v[2] + hidden.v[2]);
    s.state = c + s.kept.v[0] * s.kept.v[2];
    s.h = s.kept.v[1] * tanh(s.state);
    return s;
  }

  // elu'(g) is 1 if elu(g) > 0 and elu(g) + 1 otherwise, so g itself need not be kept.
  template <typename T>
  static FOURFOLD_FN CellGradients<T, grads> backward(Values<T, kept> kept, T, T next_c, T grad_h, T grad_next_c) {
    const T i = kept.v[0];
    const T o = kept.v[1];
    const T e = kept.v[2];
    const T t = tanh(next_c);
    CellGradients<T, grads> s;
    s.state = grad_next_c + grad_h * o * (T(1) - t * t);
    s.gates.v[0] = s.state * e * i * (T(1) - i);
    s.gates.v[1] = grad_h * t * o * (T(1) - o);
    s.gates.v[2] = s.state * i * select(e > T(0), T(1), e + T(1));
    return s;
  }
};
