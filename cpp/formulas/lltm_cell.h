// The LLTM's cell, for one step and for each step of a sequence:
//   c' = c + σ(i) elu(g),  h' = σ(o) tanh(c'),  with [i, o, g] = W [h, x] + b.
// Needs exp, expm1, tanh and select(mask, yes, no) for T.

// A value each for the input gate, the output gate and the candidate: before activation, after it, or a gradient.
template <typename T>
struct LltmGates {
  T v[3];
};

template <typename T>
struct LltmForward {
  LltmGates<T> activated;  // σ(i), σ(o), elu(g): all that the backward needs beside c'
  T h;
  T c;
};

template <typename T>
FOURFOLD_FN T sigmoid(T x) {
  return T(1) / (T(1) + exp(-x));
}

template <typename T>
FOURFOLD_FN T elu(T x) {
  return select(x > T(0), x, expm1(x));
}

template <typename T>
FOURFOLD_FN LltmForward<T> lltm_forward(LltmGates<T> gates, T c) {
  LltmForward<T> s;
  s.activated.v[0] = sigmoid(gates.v[0]);
  s.activated.v[1] = sigmoid(gates.v[1]);
  s.activated.v[2] = elu(gates.v[2]);
  s.c = c + s.activated.v[0] * s.activated.v[2];
  s.h = s.activated.v[1] * tanh(s.c);
  return s;
}

template <typename T>
struct LltmBackward {
  LltmGates<T> grad_gates;  // with respect to the gates before activation
  T grad_c;
};

// elu'(g) is 1 where elu(g) > 0 and elu(g) + 1 elsewhere, so g itself need not be kept.
template <typename T>
FOURFOLD_FN LltmBackward<T> lltm_backward(LltmGates<T> activated, T next_c, T grad_h, T grad_next_c) {
  const T i = activated.v[0];
  const T o = activated.v[1];
  const T e = activated.v[2];
  const T t = tanh(next_c);
  LltmBackward<T> s;
  s.grad_c = grad_next_c + grad_h * o * (T(1) - t * t);
  s.grad_gates.v[0] = s.grad_c * e * i * (T(1) - i);
  s.grad_gates.v[1] = grad_h * t * o * (T(1) - o);
  s.grad_gates.v[2] = s.grad_c * i * select(e > T(0), T(1), e + T(1));
  return s;
}
