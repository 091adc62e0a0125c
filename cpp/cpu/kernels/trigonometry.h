// sin, cos and tan for a vector.
//
// float: x = n π/2 + r with |r| <= π/4; π/2 in three parts (W. J. Cody and W. Waite, "Software Manual for the
// Elementary Functions", 1980) and minimax polynomials for sine and cosine on |r| <= 0.793 (Remez' algorithm,
// coefficients rounded one by one, relative errors 4.2e-9 and 1.4e-10). Lanes beyond 2^17 use the C library. Bounds in
// ulp, tested over all floats: sin and cos 1.6, tan 3.5.
//
// double: the same with π/2 in three parts of 53 bits, the first of which gives an exact difference, and r as a sum of
// two numbers; polynomials for |r| <= 0.786 (relative errors 3.8e-18 and 5.8e-20). Lanes beyond 2^40 use the C library.
// Bounds in ulp, tested over random numbers: sin and cos 1, tan 2.5.
#pragma once

#include "cpu/kernels/lanes.h"

namespace fourfold::cpu::FOURFOLD_CPU_LEVEL {

template <typename S>
struct SinCos {
  Vectorized<S> sin, cos;
};

template <typename S>
inline constexpr S largest_reduced = std::is_same_v<S, float> ? S(0x1p17) : S(0x1p40);

template <typename S>
__attribute__((noinline, cold)) inline SinCos<S> with_large(const Vectorized<S>& x, const SinCos<S>& others) {
  const auto large = less(Vectorized<S>(largest_reduced<S>), x.abs());
  return {choose(large, by_lane([](S v) { return std::sin(v); }, x), others.sin),
          choose(large, by_lane([](S v) { return std::cos(v); }, x), others.cos)};
}

// From sine and cosine of r, where x = n π/2 + r; quarter: the last two bits of n.
template <typename S, typename Bits>
FOURFOLD_FN SinCos<S> in_quadrant(const Vectorized<S>& x, const Bits& quarter, const SinCos<S>& of_r) {
  constexpr int to_sign = 8 * sizeof(S) - 2;
  const auto odd = has_bit(quarter, 1);
  const Vectorized<S> sin_sign = sign_of(float_of(quarter << Bits(to_sign)));
  const Vectorized<S> cos_sign = sign_of(float_of((quarter + Bits(1)) << Bits(to_sign)));
  const SinCos<S> result{choose(odd, of_r.cos, of_r.sin) ^ sin_sign, choose(odd, of_r.sin, of_r.cos) ^ cos_sign};
  if (any(less(Vectorized<S>(largest_reduced<S>), x.abs()))) [[unlikely]] return with_large(x, result);
  return result;
}

FOURFOLD_FN SinCos<float> sincos_of_float(const Floats& x) {
  static constexpr float of_sin[] = {-1.6666654e-01f, 8.332106e-03f, -1.9507883e-04f};
  static constexpr float of_cos[] = {4.1666646e-02f, -1.3887298e-03f, 2.4430085e-05f};
  const Floats shifted = shifted_product(x, 0.636619772f);
  const Floats n = whole(shifted);
  Floats r = at::vec::fmadd(n, Floats(-0x1.921fb4p+0f), x);
  r = at::vec::fmadd(n, Floats(-0x1.4442dp-24f), r);
  r = at::vec::fmadd(n, Floats(-0x1.846988p-48f), r);
  const Floats square = r * r;
  const Floats sin_of_r = at::vec::fmadd(horner(square, of_sin) * square, r, r) | sign_of(r);  // keeps -0
  const Floats cos_tail = at::vec::fmadd(horner(square, of_cos), square, Floats(-0.5f));
  const Floats cos_of_r = at::vec::fmadd(cos_tail, square, Floats(1.0f));
  return in_quadrant(x, bits_of(shifted), SinCos<float>{sin_of_r, cos_of_r});
}

FOURFOLD_FN SinCos<double> sincos_of_double(const Doubles& x) {
  static constexpr double of_sin[] = {-0.1666666666666663,    0.00833333333332184,     -0.00019841269829358672,
                                      2.7557313538807184e-06, -2.5050734506866734e-08, 1.589544626748561e-10};
  static constexpr double of_cos[] = {0.041666666666666595,  -0.0013888888888873305, 2.4801587288963302e-05,
                                      -2.75573142024776e-07, 2.0875703059294533e-09, -1.135861308861682e-11};
  const Doubles shifted = shifted_product(x, 0.6366197723675814);
  const Doubles n = whole(shifted);
  const Doubles first = at::vec::fmadd(n, Doubles(-0x1.921fb54442d18p+0), x);
  // The sum with the second part, and its rounding error, where either may be larger (Knuth's two-sum).
  const Doubles middle(-0x1.1a62633145c07p-54), product = n * middle, second = first + product, part = second - first;
  const Doubles lost = (first - (second - part)) + (product - part) + at::vec::fmadd(n, middle, product.neg());
  const Doubles rest = at::vec::fmadd(n, Doubles(0x1.f1976b7ed8fbcp-110), lost);
  const Doubles r = second + rest, low = rest - (r - second);
  const Doubles square = r * r, one(1.0), half = square * Doubles(0.5);
  const Doubles sin_tail = at::vec::fmadd(horner(square, of_sin) * square, r, low);
  const Doubles sin_of_r = (r + sin_tail) | sign_of(second);  // keeps -0
  // 1 - r² / 2, then its rounding error plus the remaining terms.
  const Doubles most = one - half;
  const Doubles cos_tail = at::vec::fmadd(horner(square, of_cos) * square, square, (low * r).neg());
  const Doubles cos_of_r = most + ((one - most) - half + cos_tail);
  return in_quadrant(x, bits_of(shifted), SinCos<double>{sin_of_r, cos_of_r});
}

template <typename S>
FOURFOLD_FN SinCos<S> sincos(const Vectorized<S>& x) {
  if constexpr (by_library<S>) {
    return {by_lane([](S v) { return std::sin(v); }, x), by_lane([](S v) { return std::cos(v); }, x)};
  } else if constexpr (std::is_same_v<S, double>) {
    return sincos_of_double(x);
  } else {
    return sincos_of_float(x);
  }
}

template <typename S>
FOURFOLD_FN Vectorized<S> sin(const Vectorized<S>& x) {
  return sincos(x).sin;
}

template <typename S>
FOURFOLD_FN Vectorized<S> cos(const Vectorized<S>& x) {
  return sincos(x).cos;
}

template <typename S>
FOURFOLD_FN Vectorized<S> tan(const Vectorized<S>& x) {
  if constexpr (by_library<S>) {
    return by_lane([](S v) { return std::tan(v); }, x);
  } else {
    const auto [sin, cos] = sincos(x);
    return sin / cos;
  }
}

}  // namespace fourfold::cpu::FOURFOLD_CPU_LEVEL
