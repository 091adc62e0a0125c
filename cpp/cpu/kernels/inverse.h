// The inverse trigonometric and hyperbolic functions for a vector.
//
// float: asin and atan by minimax polynomials on [0, 0.5625] and [0, 1] (Remez' algorithm, coefficients rounded one by
// one, relative errors 1.9e-9 and 3.5e-9), to which half-angle and reciprocal formulas lead; asinh, acosh and atanh by
// log1p. Bounds in ulp, tested over all floats, atan2 over random ones: asin, atan 1.4, acos 1.1, atan2 1.6, asinh 1.8,
// acosh, atanh 2.1.
#pragma once

#include "cpu/kernels/logarithm.h"

namespace fourfold::cpu::FOURFOLD_CPU_LEVEL {

inline constexpr float pi = 3.1415927f;
inline constexpr float pi_rest = -2.7827534e-8f;  // (π - pi) / pi

// c π/2 + x, where `multiple` is c π/2 rounded to float, c = 0, 1 or 2.
FOURFOLD_FN Floats plus_quarters(const Floats& multiple, const Floats& x) {
  return multiple + at::vec::fmadd(multiple, Floats(pi_rest), x);
}

// asin of x within ±0.5625, given x².
FOURFOLD_FN Floats asin_near(const Floats& x, const Floats& square) {
  static constexpr float c[] = {1.6666631e-01f, 7.502099e-02f,   4.4231832e-02f,
                                3.4013815e-02f, 6.7318855e-03f, 4.7497213e-02f};
  return at::vec::fmadd(horner(square, c) * square, x, x);
}

struct HalfAngle {
  Mask far;       // |x| > 0.5625
  Floats nearer;  // asin(|x|), or where far (π/2 - asin(|x|)) / 2
};

FOURFOLD_FN HalfAngle half_angle(const Floats& x) {
  const Floats a = x.abs();
  const Mask far = less(Floats(0.5625f), a);  // where the half is below 1/2, and twice its last place small enough
  const Floats square = choose(far, at::vec::fmadd(a, Floats(-0.5f), Floats(0.5f)), a * a);
  return {far, asin_near(choose(far, square.sqrt(), a), square)};
}

template <typename S>
FOURFOLD_FN Vectorized<S> asin(const Vectorized<S>& x) {
  if constexpr (by_library<S>) {
    return by_lane([](S v) { return std::asin(v); }, x);
  } else {
    const auto [far, nearer] = half_angle(x);
    const Floats rest = plus_quarters(Floats(pi / 2), nearer * Floats(-2.0f));
    return choose(far, rest, nearer) | sign_of(x);
  }
}

template <typename S>
FOURFOLD_FN Vectorized<S> acos(const Vectorized<S>& x) {
  if constexpr (by_library<S>) {
    return by_lane([](S v) { return std::acos(v); }, x);
  } else {
    const auto [far, nearer] = half_angle(x);
    const Floats positive = choose(far, nearer * Floats(2.0f), nearer ^ Floats(-0.0f));
    const Floats base = choose(far, choose(less(x, Floats(0.0f)), Floats(pi), Floats(0.0f)), Floats(pi / 2));
    return plus_quarters(base, positive ^ sign_of(x));
  }
}

// atan of t within [0, 1].
FOURFOLD_FN Floats atan_near(const Floats& t) {
  static constexpr float c[] = {-3.33333e-01f,   1.999853e-01f,   -1.4264043e-01f, 1.0951317e-01f, -8.401911e-02f,
                                5.7954926e-02f, -3.1202879e-02f, 1.0943955e-02f,  -1.8037859e-03f};
  const Floats square = t * t;
  return at::vec::fmadd(horner(square, c) * square, t, t);
}

template <typename S>
FOURFOLD_FN Vectorized<S> atan(const Vectorized<S>& x) {
  if constexpr (by_library<S>) {
    return by_lane([](S v) { return std::atan(v); }, x);
  } else {
    const Floats a = x.abs();
    const Mask far = less(Floats(1.0f), a);
    const Floats angle = atan_near(choose(far, Floats(1.0f) / a, a));
    return choose(far, plus_quarters(Floats(pi / 2), angle ^ Floats(-0.0f)), angle) | sign_of(x);
  }
}

template <typename S>
FOURFOLD_FN Vectorized<S> atan2(const Vectorized<S>& y, const Vectorized<S>& x) {
  if constexpr (by_library<S>) {
    return by_lane([](S v, S w) { return std::atan2(v, w); }, y, x);
  } else {
    const Floats a = x.abs(), b = y.abs();
    const Mask steep = less(a, b);
    const Floats larger = choose(steep, b, a), smaller = choose(steep, a, b);
    // 0 / 0 is to be 0 here, and infinity / infinity 1.
    const Floats like = choose(equal(larger, Floats(0.0f)), larger, Floats(1.0f));
    const Floats ratio = choose(equal(larger, smaller), like, smaller / larger);
    const Floats base = float_of((bits_of(x) >> Ints(31)) & bits_of(Floats(pi)));  // π if x has a sign, as -0 does
    const Floats angle = atan_near(ratio) ^ sign_of(x) ^ choose(steep, Floats(-0.0f), Floats(0.0f));
    const Floats result = plus_quarters(choose(steep, Floats(pi / 2), base), angle).abs() | sign_of(y);
    return choose(either_nan(x, y), x + y, result);
  }
}

// log1p(z) for the inverse hyperbolic functions, which are log(2 x) where x is large, and z overflows.
FOURFOLD_FN Floats log1p_or_of_twice(const Floats& z, const Floats& x) {
  const Mask large = at_most(Floats(0x1p40f), x);
  return log1p_ordinary(choose(large, x, z), choose(large, Floats(1.0f), Floats(0.0f)));
}

template <typename S>
FOURFOLD_FN Vectorized<S> asinh(const Vectorized<S>& x) {
  if constexpr (by_library<S>) {
    return by_lane([](S v) { return std::asinh(v); }, x);
  } else {
    const Floats a = x.abs();
    const Floats root = at::vec::fmadd(a, a, Floats(1.0f)).sqrt();
    const Floats z = a + a * a / (root + Floats(1.0f));
    const Floats result = log1p_or_of_twice(z, a) | sign_of(x);
    return choose(less(a, Floats(infinity)), result, x);
  }
}

template <typename S>
FOURFOLD_FN Vectorized<S> acosh(const Vectorized<S>& x) {
  if constexpr (by_library<S>) {
    return by_lane([](S v) { return std::acosh(v); }, x);
  } else {
    const Floats above = x - Floats(1.0f);
    const Floats z = above + at::vec::fmadd(above, above, above + above).sqrt();
    const Floats others = choose(less(x, Floats(1.0f)), Floats(not_a_number), x);
    return choose(at_most(Floats(1.0f), x) & less(x, Floats(infinity)), log1p_or_of_twice(z, x), others);
  }
}

template <typename S>
FOURFOLD_FN Vectorized<S> atanh(const Vectorized<S>& x) {
  if constexpr (by_library<S>) {
    return by_lane([](S v) { return std::atanh(v); }, x);
  } else {
    const Floats a = x.abs();
    return (log1p((a + a) / (Floats(1.0f) - a)) * Floats(0.5f)) | sign_of(x);
  }
}

}  // namespace fourfold::cpu::FOURFOLD_CPU_LEVEL
