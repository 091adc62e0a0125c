// Shrinks x towards zero by λ. x * 0, rather than 0, keeps NaN. Needs select(mask, yes, no) for T.
template <typename T>
FOURFOLD_FN T softshrink(T x, T lambd) {
  return select(x > lambd, x - lambd, select(x < -lambd, x + lambd, x * T(0)));
}

// The mask names where the gradient stops, so that it passes where x is NaN, as torch's does.
template <typename T>
FOURFOLD_FN T softshrink_backward(T grad, T x, T lambd) {
  return select((x >= -lambd) & (x <= lambd), T(0), grad);
}
