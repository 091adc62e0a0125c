// exp, expm1 and tanh for a vector: the surroundings that cpp/formulas/ need on the CPU.
//
// exp and expm1 share one range reduction: x = n ln2 + r with |r| <= ln2 / 2, exp(x) = 2^n (1 + p(r)), where p is the
// Taylor polynomial of expm1. What is built on them keeps these bounds, in units in the last place, which a test holds for
// arguments within ±80: sigmoid 4, elu (expm1) 3, tanh 4. exp below 1.5 times the smallest normal number is zero.
#pragma once

#include "cpu/vec.h"

namespace fourfold::cpu::FOURFOLD_CPU_LEVEL {

template <typename S>
struct ExpConstants;

template <>
struct ExpConstants<float> {
  using Bits = int32_t;
  static constexpr int mantissa_bits = 23;
  static constexpr int degree = 7;
  static constexpr float round_magic = 12582912.0f;  // 1.5 * 2^23: adding it leaves round(x) in the low mantissa bits
  static constexpr float ln2_high = 0.693145751953125f, ln2_low = 1.42860677e-6f;
  static constexpr float smallest = -104.0f, largest = 89.0f;
};

template <>
struct ExpConstants<double> {
  using Bits = int64_t;
  static constexpr int mantissa_bits = 52;
  static constexpr int degree = 13;
  static constexpr double round_magic = 6755399441055744.0;  // 1.5 * 2^52
  static constexpr double ln2_high = 0.693147180369123816490, ln2_low = 1.90821492927058770002e-10;
  static constexpr double smallest = -746.0, largest = 710.0;
};

template <typename S>
struct ExpParts {
  Vectorized<S> half_scale;  // 2^(n-1): 2^n itself overflows for the largest arguments
  Vectorized<S> p;           // expm1(r)
};

template <typename S>
FOURFOLD_FN ExpParts<S> exp_parts(Vectorized<S> x) {
  using C = ExpConstants<S>;
  using V = Vectorized<S>;
  using I = Vectorized<typename C::Bits>;
  x = at::vec::minimum(at::vec::maximum(x, V(C::smallest)), V(C::largest));
  const V shifted = at::vec::fmadd(x, V(S(1.442695040888963407)), V(C::round_magic));
  const V n = shifted - V(C::round_magic);
  V r = at::vec::fmadd(n, V(-C::ln2_high), x);
  r = at::vec::fmadd(n, V(-C::ln2_low), r);

  S inverse_factorial = 1;
  S coefficients[C::degree + 1];
  for (int k = 1; k <= C::degree; ++k) coefficients[k] = inverse_factorial /= S(k);
  V q(coefficients[C::degree]);
  for (int k = C::degree - 1; k >= 2; --k) q = at::vec::fmadd(q, r, V(coefficients[k]));
  const V p = at::vec::fmadd(q, r * r, r);

  // The exponent field of 2^(n-1), held at zero for what would be less than the smallest normal number.
  const V least = V(S(2 - (1 << (sizeof(S) == 4 ? 7 : 10))));
  const V clipped = at::vec::maximum(n, least) + V(C::round_magic);
  const I biased = at::vec::cast<typename C::Bits>(clipped) + I((typename C::Bits(1) << (sizeof(S) == 4 ? 7 : 10)) - 2);
  return {at::vec::cast<S>(biased << I(C::mantissa_bits)), p};
}

template <typename S>
FOURFOLD_FN Vectorized<S> exp(const Vectorized<S>& x) {
  const auto [half_scale, p] = exp_parts(x);
  return at::vec::fmadd(half_scale, p, half_scale) * Vectorized<S>(2);
}

template <typename S>
FOURFOLD_FN Vectorized<S> expm1(const Vectorized<S>& x) {
  const auto [half_scale, p] = exp_parts(x);
  const Vectorized<S> half(S(0.5));
  return at::vec::fmadd(half_scale, p, half_scale - half) * Vectorized<S>(2);
}

// tanh |x| = -m / (m + 2) with m = expm1(-2|x|), which keeps its relative error near zero; then x's sign.
template <typename S>
FOURFOLD_FN Vectorized<S> tanh(const Vectorized<S>& x) {
  const Vectorized<S> m = expm1(x.abs() * Vectorized<S>(-2));
  const Vectorized<S> sign = x & Vectorized<S>(S(-0.0));
  return (-m / (m + Vectorized<S>(2))) | sign;
}

template <typename S>
FOURFOLD_FN Vectorized<S> select(const Vectorized<S>& mask, const Vectorized<S>& yes, const Vectorized<S>& no) {
  return Vectorized<S>::blendv(no, yes, mask);
}

}  // namespace fourfold::cpu::FOURFOLD_CPU_LEVEL
