// sin, cos and tan for a vector.
//
// float: x = n π/2 + r with |r| <= π/4; π/2 in three parts (W. J. Cody and W. Waite, "Software Manual for the
// Elementary Functions", 1980) and minimax polynomials for sine and cosine on |r| <= 0.793 (Remez' algorithm,
// coefficients rounded one by one, relative errors 4.2e-9 and 1.4e-10). Lanes beyond 2^17 are the C library's. Bounds
// in ulp, tested over all floats: sin and cos 1.6, tan 3.5.
#pragma once

#include "cpu/kernels/lanes.h"

namespace fourfold::cpu::FOURFOLD_CPU_LEVEL {

template <typename S>
struct SinCos {
  Vectorized<S> sin, cos;
};

inline constexpr float largest_reduced = 0x1p17f;

__attribute__((noinline, cold)) inline SinCos<float> with_large(const Floats& x, const SinCos<float>& others) {
  const Mask large = less(Floats(largest_reduced), x.abs());
  return {choose(large, by_lane([](float v) { return std::sin(v); }, x), others.sin),
          choose(large, by_lane([](float v) { return std::cos(v); }, x), others.cos)};
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
  const Floats sin_of_r = at::vec::fmadd(horner(square, of_sin) * square, r, r) | sign_of(r);  // -0 stays
  const Floats cos_tail = at::vec::fmadd(horner(square, of_cos), square, Floats(-0.5f));
  const Floats cos_of_r = at::vec::fmadd(cos_tail, square, Floats(1.0f));

  const Ints quarter = bits_of(shifted);
  const Mask odd = has_bit(quarter, 1);
  const Floats sin_sign = sign_of(float_of(quarter << Ints(30)));
  const Floats cos_sign = sign_of(float_of((quarter + Ints(1)) << Ints(30)));
  const SinCos<float> result{choose(odd, cos_of_r, sin_of_r) ^ sin_sign, choose(odd, sin_of_r, cos_of_r) ^ cos_sign};
  if (any(less(Floats(largest_reduced), x.abs()))) [[unlikely]] return with_large(x, result);
  return result;
}

template <typename S>
FOURFOLD_FN SinCos<S> sincos(const Vectorized<S>& x) {
  if constexpr (by_library<S>) {
    return {by_lane([](S v) { return std::sin(v); }, x), by_lane([](S v) { return std::cos(v); }, x)};
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
    const auto [sin, cos] = sincos_of_float(x);
    return sin / cos;
  }
}

}  // namespace fourfold::cpu::FOURFOLD_CPU_LEVEL
