// The inverse trigonometric and hyperbolic functions for a vector.
//
// float: asin and atan by minimax polynomials on [0, 0.5625] and [0, 1] (Remez' algorithm, coefficients rounded one by
// one, relative errors 1.9e-9 and 3.5e-9), with reduction by half-angle and reciprocal formulas; asinh, acosh and atanh
// by log1p. Bounds in ulp, tested over all floats, atan2 over random ones: asin, atan 1.4, acos 1.1, atan2 1.6, asinh
// 1.8, acosh, atanh 2.1.
//
// double: the same, with polynomials of relative errors 4.3e-18 and 2.2e-18. Bounds in ulp, tested over random numbers:
// asin, atan 1.6, acos 1.1, atan2 1.6, asinh, acosh, atanh 2.1.
#pragma once

#include "cpu/kernels/logarithm.h"

namespace fourfold::cpu::FOURFOLD_CPU_LEVEL {

template <typename S>
inline constexpr S pi = S(3.141592653589793);
template <typename S>  // (π - pi) / pi
inline constexpr S pi_rest = std::is_same_v<S, float> ? S(-2.7827534e-8f) : S(3.8981718325193755e-17);

// c π/2 + x, where `multiple` is c π/2 rounded to S, c = 0, 1 or 2.
template <typename S>
FOURFOLD_FN Vectorized<S> plus_quarters(const Vectorized<S>& multiple, const Vectorized<S>& x) {
  return multiple + at::vec::fmadd(multiple, Vectorized<S>(pi_rest<S>), x);
}

// asin(x) = x + x³ P(x²) for x within ±0.5625.
FOURFOLD_FN Floats asin_polynomial(const Floats& square) {
  static constexpr float c[] = {1.6666631e-01f, 7.502099e-02f,   4.4231832e-02f,
                                3.4013815e-02f, 6.7318855e-03f, 4.7497213e-02f};
  return horner(square, c);
}

FOURFOLD_FN Doubles asin_polynomial(const Doubles& square) {
  static constexpr double c[] = {0.16666666666666316,  0.0750000000009871,   0.04464285704565302,  0.030381949275194702,
                                 0.022372017047245684, 0.01735545958063432,  0.013930106326598418, 0.011865178504795813,
                                 0.007754167178204198, 0.017525725176076448, -0.02177176781072881, 0.0687727955447247,
                                 -0.07691158437217079, 0.059890665216424215};
  return in_two_chains(square, c);
}

template <typename S>
struct HalfAngle {
  decltype(less(Vectorized<S>(), Vectorized<S>())) far;  // |x| > 0.5625
  Vectorized<S> nearer;                                  // asin(|x|), or (π/2 - asin(|x|)) / 2 if far
};

template <typename S>
FOURFOLD_FN HalfAngle<S> half_angle(const Vectorized<S>& x) {
  using V = Vectorized<S>;
  const V a = x.abs();
  const auto far = less(V(S(0.5625)), a);  // the half angle is below 1/2, so doubling its error is small enough
  const V square = choose(far, at::vec::fmadd(a, V(S(-0.5)), V(S(0.5))), a * a);
  const V sine = choose(far, square.sqrt(), a);
  return {far, at::vec::fmadd(asin_polynomial(square) * square, sine, sine)};
}

template <typename S>
FOURFOLD_FN Vectorized<S> asin(const Vectorized<S>& x) {
  if constexpr (by_library<S>) {
    return by_lane([](S v) { return std::asin(v); }, x);
  } else {
    using V = Vectorized<S>;
    const auto [far, nearer] = half_angle(x);
    const V rest = plus_quarters(V(pi<S> / 2), nearer * V(S(-2)));
    return choose(far, rest, nearer) | sign_of(x);
  }
}

template <typename S>
FOURFOLD_FN Vectorized<S> acos(const Vectorized<S>& x) {
  if constexpr (by_library<S>) {
    return by_lane([](S v) { return std::acos(v); }, x);
  } else {
    using V = Vectorized<S>;
    const auto [far, nearer] = half_angle(x);
    const V positive = choose(far, nearer * V(S(2)), nearer ^ V(S(-0.0)));
    const V base = choose(far, choose(less(x, V(S(0))), V(pi<S>), V(S(0))), V(pi<S> / 2));
    return plus_quarters(base, positive ^ sign_of(x));
  }
}

// atan(t) = t + t³ P(t²) for t within [0, 1].
FOURFOLD_FN Floats atan_polynomial(const Floats& square) {
  static constexpr float c[] = {-3.33333e-01f,   1.999853e-01f,   -1.4264043e-01f, 1.0951317e-01f, -8.401911e-02f,
                                5.7954926e-02f, -3.1202879e-02f, 1.0943955e-02f,  -1.8037859e-03f};
  return horner(square, c);
}

FOURFOLD_FN Doubles atan_polynomial(const Doubles& square) {
  static constexpr double c[] = {-0.33333333333333287, 0.19999999999990617,   -0.1428571428504495,   0.11111111086668876,
                                 -0.09090908550949442, 0.07692299753689076,   -0.06666584063960664,  0.058817182199472046,
                                 -0.052594433354629794, 0.04744960386918666,  -0.04286487623629148,  0.03821222409003184,
                                 -0.03278925797422093, 0.026157043678531146,  -0.01862013835305674,  0.01132274370609065,
                                 -0.005615704617707773, 0.002153172151730497, -0.0005934157705209394, 0.0001039781836177553,
                                 -8.664245386880488e-06};
  return horner(square, c);
}

template <typename S>
FOURFOLD_FN Vectorized<S> atan_near(const Vectorized<S>& t) {
  const Vectorized<S> square = t * t;
  return at::vec::fmadd(atan_polynomial(square) * square, t, t);
}

template <typename S>
FOURFOLD_FN Vectorized<S> atan(const Vectorized<S>& x) {
  if constexpr (by_library<S>) {
    return by_lane([](S v) { return std::atan(v); }, x);
  } else {
    using V = Vectorized<S>;
    const V a = x.abs();
    const auto far = less(V(S(1)), a);
    const V angle = atan_near(choose(far, V(S(1)) / a, a));
    return choose(far, plus_quarters(V(pi<S> / 2), angle ^ V(S(-0.0))), angle) | sign_of(x);
  }
}

template <typename S>
FOURFOLD_FN Vectorized<S> atan2(const Vectorized<S>& y, const Vectorized<S>& x) {
  if constexpr (by_library<S>) {
    return by_lane([](S v, S w) { return std::atan2(v, w); }, y, x);
  } else {
    using V = Vectorized<S>;
    const V a = x.abs(), b = y.abs();
    const auto steep = less(a, b);
    const V larger = choose(steep, b, a), smaller = choose(steep, a, b);
    // Here 0 / 0 must give 0, and infinity / infinity 1.
    const V like = choose(equal(larger, V(S(0))), larger, V(S(1)));
    const V ratio = choose(equal(larger, smaller), like, smaller / larger);
    const V base = sign_as_mask(x) & V(pi<S>);  // π if x has a sign, as -0 does
    const V angle = atan_near(ratio) ^ sign_of(x) ^ choose(steep, V(S(-0.0)), V(S(0)));
    const V result = plus_quarters(choose(steep, V(pi<S> / 2), base), angle).abs() | sign_of(y);
    return choose(either_nan(x, y), x + y, result);
  }
}

// log1p(z) for the inverse hyperbolic functions; for large x, where z overflows, log(2 x).
template <typename S>
FOURFOLD_FN Vectorized<S> log1p_or_of_twice(const Vectorized<S>& z, const Vectorized<S>& x) {
  using V = Vectorized<S>;
  const auto large = at_most(V(std::is_same_v<S, float> ? S(0x1p40) : S(0x1p60)), x);
  return log1p_ordinary(choose(large, x, z), choose(large, V(S(1)), V(S(0))));
}

template <typename S>
FOURFOLD_FN Vectorized<S> asinh(const Vectorized<S>& x) {
  if constexpr (by_library<S>) {
    return by_lane([](S v) { return std::asinh(v); }, x);
  } else {
    using V = Vectorized<S>;
    const V a = x.abs();
    const V root = at::vec::fmadd(a, a, V(S(1))).sqrt();
    const V z = a + a * a / (root + V(S(1)));
    const V result = log1p_or_of_twice(z, a) | sign_of(x);
    return choose(less(a, V(infinity)), result, x);
  }
}

template <typename S>
FOURFOLD_FN Vectorized<S> acosh(const Vectorized<S>& x) {
  if constexpr (by_library<S>) {
    return by_lane([](S v) { return std::acosh(v); }, x);
  } else {
    using V = Vectorized<S>;
    const V above = x - V(S(1));
    const V z = above + at::vec::fmadd(above, above, above + above).sqrt();
    const V others = choose(less(x, V(S(1))), V(not_a_number), x);
    return choose(at_most(V(S(1)), x) & less(x, V(infinity)), log1p_or_of_twice(z, x), others);
  }
}

template <typename S>
FOURFOLD_FN Vectorized<S> atanh(const Vectorized<S>& x) {
  if constexpr (by_library<S>) {
    return by_lane([](S v) { return std::atanh(v); }, x);
  } else {
    using V = Vectorized<S>;
    const V a = x.abs();
    return (log1p((a + a) / (V(S(1)) - a)) * V(S(0.5))) | sign_of(x);
  }
}

}  // namespace fourfold::cpu::FOURFOLD_CPU_LEVEL
