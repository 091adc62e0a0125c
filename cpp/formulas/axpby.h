// z = αx + βy. The gradients are α and β times z's, scalings that need no formula of their own.
template <typename T>
FOURFOLD_FN T axpby(T x, T y, T alpha, T beta) {
  return alpha * x + beta * y;
}
