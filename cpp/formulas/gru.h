// The GRU's cell, as torch.nn.GRU defines it, the reset gate on the hidden product:
//   r = σ(r_x + r_h),  z = σ(z_x + z_h),  n = tanh(n_x + r n_h),  h' = (1 - z) n + z h,
//   with [r_x, z_x, n_x] = W_ih x + b_ih and [r_h, z_h, n_h] = W_hh h + b_hh.
// Needs gates.h, and sigmoid and tanh for T.

struct Gru {
  // Gates: r, z, n. Kept: r, z, n after activation, and n_h. The gradients of n_x and n_h differ: slots n_x, r, z, n_h.
  FOURFOLD_CONSTANT int gates = 3, kept = 4, grads = 4;
  FOURFOLD_CONSTANT bool has_c = false;
  static constexpr int input_gate(int slot) { return slot == 0 ? 2 : slot - 1; }
  static constexpr int hidden_gate(int slot) { return slot - 1; }

  template <typename T>
  static FOURFOLD_FN CellStep<T, kept> forward(Values<T, gates> input, Values<T, gates> hidden, T h) {
    CellStep<T, kept> s;
    s.kept.v[0] = sigmoid(input.v[0] + hidden.v[0]);
    s.kept.v[1] = sigmoid(input.v[1] + hidden.v[1]);
    s.kept.v[2] = tanh(input.v[2] + s.kept.v[0] * hidden.v[2]);
    s.kept.v[3] = hidden.v[2];
    s.h = s.kept.v[2] + s.kept.v[1] * (h - s.kept.v[2]);
    s.state = s.h;
    return s;
  }

  // The gradient of h' has two parts: through the next step's products, and through its z.
  template <typename T>
  static FOURFOLD_FN CellGradients<T, grads> backward(Values<T, kept> kept, T h, T, T grad_h, T grad_next_h) {
    const T r = kept.v[0];
    const T z = kept.v[1];
    const T n = kept.v[2];
    const T grad = grad_h + grad_next_h;
    CellGradients<T, grads> s;
    s.gates.v[0] = grad * (T(1) - z) * (T(1) - n * n);
    s.gates.v[1] = s.gates.v[0] * kept.v[3] * r * (T(1) - r);
    s.gates.v[2] = grad * (h - n) * z * (T(1) - z);
    s.gates.v[3] = s.gates.v[0] * r;
    s.state = grad * z;
    return s;
  }
};
