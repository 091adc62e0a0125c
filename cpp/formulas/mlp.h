// The hidden layer's activation. NaN passes, as in torch's relu. Needs select(mask, yes, no) for T.
template <typename T>
FOURFOLD_FN T relu(T x) {
  return select(x <= T(0), T(0), x);
}

// `activated` is relu(x): the gradient stops where it is zero.
template <typename T>
FOURFOLD_FN T relu_backward(T grad, T activated) {
  return select(activated <= T(0), T(0), grad);
}
