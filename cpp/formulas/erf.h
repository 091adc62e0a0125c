// erf in float arithmetic, for languages without it: N. Juffa's two minimax polynomials
// (stackoverflow.com/questions/35148198, BSD licence), of erf near zero and of the logarithm of 1 - erf beyond.
// Needs abs, exp, fma and select for T.
template <typename T>
FOURFOLD_FN T erf_of_float(T x) {
  const T t = abs(x);
  const T s = x * x;
  T near = T(-5.96761703e-4f);
  near = fma(near, s, T(4.99119423e-3f));
  near = fma(near, s, T(-2.67681349e-2f));
  near = fma(near, s, T(1.12819925e-1f));
  near = fma(near, s, T(-3.76125336e-1f));
  near = fma(near, s, T(1.28379166e-1f));
  near = fma(near, x, x);
  const T low = fma(T(-3.88396438e-3f), t, T(2.42546219e-2f));
  T far = fma(T(-1.72853470e-5f), t, T(3.83197126e-4f));
  far = fma(far, s, low);
  far = fma(far, t, T(-1.06777877e-1f));
  far = fma(far, t, T(-6.34846687e-1f));
  far = fma(far, t, T(-1.28717512e-1f));
  far = T(1) - exp(fma(far, t, -t));
  return select(t > T(0.927734375f), select(x < T(0), -far, far), near);
}
