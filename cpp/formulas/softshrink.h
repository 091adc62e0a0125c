// Shrinks x towards zero by λ. Needs select(mask, yes, no) for T.
template <typename T>
struct Softshrink {
  FOURFOLD_CONSTANT bool of_integers = false;
  T lambd;

  // x * 0 instead of 0 keeps NaN.
  FOURFOLD_FN T forward(T x) const { return select(x > lambd, x - lambd, select(x < -lambd, x + lambd, x * T(0))); }

  // The mask selects where the gradient is zero, so that it passes where x is NaN, as in torch.
  FOURFOLD_FN T backward(T grad, T x) const { return select((x >= -lambd) & (x <= lambd), T(0), grad); }
};
