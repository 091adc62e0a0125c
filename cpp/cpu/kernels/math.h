// exp, expm1, sigmoid and tanh for a vector: the functions that cpp/formulas/ need on the CPU.
//
// They share one range reduction: x = n ln2 + r with |r| <= ln2 / 2, exp(x) = 2^n (1 + p(r)), where p(r) = r + r² q(r)
// approximates expm1: a minimax polynomial for float (relative error 1.4e-8), Taylor's for double. Tested bounds in
// ulp, for arguments within ±80: sigmoid 4, elu (expm1) 3, tanh 4.
#pragma once

#include "cpu/kernels/vec.h"

namespace fourfold::cpu::FOURFOLD_CPU_LEVEL {

template <typename S>
struct ExpConstants;

template <>
struct ExpConstants<float> {
  using Bits = int32_t;
  static constexpr int mantissa_bits = 23;
  static constexpr int degree = 4;
  static constexpr float q[] = {0.5000000062f, 0.1666654312f, 0.04166628247f, 0.008366571397f, 0.001394642686f};
  static constexpr float round_magic = 12582912.0f;  // 1.5 * 2^23: adding it leaves round(x) in the low mantissa bits
  static constexpr float ln2_high = 0.693145751953125f, ln2_low = 1.42860677e-6f;
  static constexpr float smallest = -86.6f, largest = 89.0f;  // exp(smallest) is twice the smallest normal number
  static constexpr float negligible = -44.36142f;  // exp(negligible) is 2^-64
  static constexpr float tanh_limit = 9.02f;  // tanh(tanh_limit) rounds to 1
};

template <>
struct ExpConstants<double> {
  using Bits = int64_t;
  static constexpr int mantissa_bits = 52;
  static constexpr int degree = 11;
  static constexpr double q[] = {1.0 / 2,       1.0 / 6,        1.0 / 24,        1.0 / 120,        1.0 / 720,        1.0 / 5040,
                                 1.0 / 40320,   1.0 / 362880,   1.0 / 3628800,   1.0 / 39916800,   1.0 / 479001600,
                                 1.0 / 6227020800};
  static constexpr double round_magic = 6755399441055744.0;  // 1.5 * 2^52
  static constexpr double ln2_high = 0.693147180369123816490, ln2_low = 1.90821492927058770002e-10;
  static constexpr double smallest = -707.0, largest = 710.0, negligible = -707.0;
  static constexpr double tanh_limit = 19.1;
};

template <typename S>
struct ExpParts {
  Vectorized<S> half_scale;  // 2^(n-1): 2^n itself overflows for the largest arguments
  Vectorized<S> p;           // expm1(r)
};

template <typename S>
FOURFOLD_FN Vectorized<S> polynomial(const Vectorized<S>& r) {
  using C = ExpConstants<S>;
  Vectorized<S> q(C::q[C::degree]);
  for (int k = C::degree - 1; k >= 0; --k) q = at::vec::fmadd(q, r, Vectorized<S>(C::q[k]));
  return at::vec::fmadd(q, r * r, r);
}

// x clamped to [low, high]; NaN stays NaN.
template <typename S>
FOURFOLD_FN Vectorized<S> hold(const Vectorized<S>& x, S low, S high) {
  return at::vec::minimum(at::vec::maximum(x, Vectorized<S>(low)), Vectorized<S>(high));
}

// The minimum of both; NaN if x is NaN.
template <typename S>
FOURFOLD_FN Vectorized<S> lesser(const Vectorized<S>& x, S most) {
  return at::vec::minimum(x, Vectorized<S>(most));
}

#if defined(CPU_CAPABILITY_AVX2)
// Saves two instructions of at::vec's versions, which propagate NaN from either operand: x86's minimum and maximum
// return their second operand if one is NaN. They dominate the time of recurrent cells, which run once per gate and
// step.
FOURFOLD_FN Vectorized<float> lesser(const Vectorized<float>& x, float most) {
  return _mm256_min_ps(_mm256_set1_ps(most), x);
}

FOURFOLD_FN Vectorized<float> hold(const Vectorized<float>& x, float low, float high) {
  return _mm256_min_ps(_mm256_set1_ps(high), _mm256_max_ps(_mm256_set1_ps(low), x));
}

FOURFOLD_FN Vectorized<double> hold(const Vectorized<double>& x, double low, double high) {
  return _mm256_min_pd(_mm256_set1_pd(high), _mm256_max_pd(_mm256_set1_pd(low), x));
}
#endif

template <typename S>
FOURFOLD_FN Vectorized<S> divide(const Vectorized<S>& a, const Vectorized<S>& b) {
  return a / b;
}

// For x clamped to [smallest, largest].
template <typename S>
FOURFOLD_FN ExpParts<S> exp_parts(const Vectorized<S>& x) {
  using C = ExpConstants<S>;
  using V = Vectorized<S>;
  using I = Vectorized<typename C::Bits>;
  const V shifted = at::vec::fmadd(x, V(S(1.442695040888963407)), V(C::round_magic));
  const V n = shifted - V(C::round_magic);
  V r = at::vec::fmadd(n, V(-C::ln2_high), x);
  r = at::vec::fmadd(n, V(-C::ln2_low), r);
  const V biased = n + V(C::round_magic + S((1 << (sizeof(S) == 4 ? 7 : 10)) - 2));  // the exponent field of 2^(n-1)
  return {at::vec::cast<S>(at::vec::cast<typename C::Bits>(biased) << I(C::mantissa_bits)), polynomial(r)};
}

#if defined(CPU_CAPABILITY_AVX512)
// AVX-512 instructions for the operations that dominate the time of recurrent cells, which run once per gate and step.
// x86's minimum and maximum return their second operand if one is NaN.
FOURFOLD_FN Vectorized<float> hold(const Vectorized<float>& x, float low, float high) {
  return _mm512_min_ps(_mm512_set1_ps(high), _mm512_max_ps(_mm512_set1_ps(low), x));
}

FOURFOLD_FN Vectorized<double> hold(const Vectorized<double>& x, double low, double high) {
  return _mm512_min_pd(_mm512_set1_pd(high), _mm512_max_pd(_mm512_set1_pd(low), x));
}

FOURFOLD_FN Vectorized<float> lesser(const Vectorized<float>& x, float most) {
  return _mm512_min_ps(_mm512_set1_ps(most), x);
}

// Division by a 14-bit reciprocal and one Newton step, to within an ulp. For b between 2^-126 and 2^127.
FOURFOLD_FN Vectorized<float> divide(const Vectorized<float>& a, const Vectorized<float>& b) {
  const __m512 near = _mm512_rcp14_ps(b);
  const __m512 quotient = _mm512_mul_ps(a, near);
  return _mm512_fmadd_ps(_mm512_fnmadd_ps(quotient, b, a), near, quotient);
}

FOURFOLD_FN ExpParts<float> exp_parts(const Vectorized<float>& x) {
  using C = ExpConstants<float>;
  const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)), 0);
  __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(C::ln2_high), x);
  r = _mm512_fnmadd_ps(n, _mm512_set1_ps(C::ln2_low), r);
  return {_mm512_scalef_ps(_mm512_set1_ps(0.5f), n), polynomial<float>(r)};
}
#endif

// exp(x), at least twice the smallest normal number: products with subnormal numbers take CPUs a hundred times as long.
template <typename S>
FOURFOLD_FN Vectorized<S> exp_held(const Vectorized<S>& x) {
  const auto [half_scale, p] = exp_parts(hold(x, ExpConstants<S>::smallest, ExpConstants<S>::largest));
  return at::vec::fmadd(half_scale, p, half_scale) * Vectorized<S>(2);
}

// exp(x) for sums with numbers near one: zero if it is negligible, so that no multiple of it is subnormal.
template <typename S>
FOURFOLD_FN Vectorized<S> exp(const Vectorized<S>& x) {
  const Vectorized<S> negligible = x < Vectorized<S>(ExpConstants<S>::negligible);
  return Vectorized<S>::blendv(exp_held(x), Vectorized<S>(S(0)), negligible);
}

template <typename S>
FOURFOLD_FN Vectorized<S> expm1(const Vectorized<S>& x) {
  const auto [half_scale, p] = exp_parts(hold(x, ExpConstants<S>::smallest, ExpConstants<S>::largest));
  return at::vec::fmadd(half_scale, p, half_scale - Vectorized<S>(S(0.5))) * Vectorized<S>(2);
}

// 1 / (1 + exp(-x)); zero if exp(-x) overflows, so that its product with infinity is NaN.
template <typename S>
FOURFOLD_FN Vectorized<S> sigmoid(const Vectorized<S>& x) {
  const Vectorized<S> one(S(1));
  const auto [half_scale, p] = exp_parts(hold(x.neg(), ExpConstants<S>::smallest, ExpConstants<S>::largest));
  return one / at::vec::fmadd(at::vec::fmadd(half_scale, p, half_scale), Vectorized<S>(S(2)), one);
}

#if defined(CPU_CAPABILITY_AVX512)
FOURFOLD_FN Vectorized<float> exp(const Vectorized<float>& x) {
  using C = ExpConstants<float>;
  const __mmask16 counts = _mm512_cmp_ps_mask(x, _mm512_set1_ps(C::negligible), _CMP_NLT_UQ);  // NaN too
  return _mm512_maskz_mov_ps(counts, exp_held(x));
}

// Numerator and denominator are halved, so that the denominator stays finite. Lanes in which it would still be too
// large are masked before they produce subnormal numbers.
FOURFOLD_FN Vectorized<float> sigmoid(const Vectorized<float>& x) {
  constexpr float zero = -88.722839f;  // exp(-zero) just overflows
  const __mmask16 above = _mm512_cmp_ps_mask(x, _mm512_set1_ps(zero), _CMP_NLE_UQ);  // NaN too
  const __m512 half = _mm512_set1_ps(0.5f);
  const auto [half_scale, p] =
      exp_parts(Vectorized<float>(_mm512_max_ps(_mm512_set1_ps(ExpConstants<float>::smallest), x.neg())));
  const __m512 denominator = _mm512_add_ps(_mm512_fmadd_ps(half_scale, p, half_scale), half);
  const __m512 near = _mm512_maskz_rcp14_ps(above, denominator);
  const __m512 quotient = _mm512_mul_ps(half, near);
  return _mm512_maskz_fmadd_ps(above, _mm512_fnmadd_ps(quotient, denominator, half), near, quotient);
}
#endif

// m / (m + 2) with m = expm1(2x), which keeps its relative error near zero.
template <typename S>
FOURFOLD_FN Vectorized<S> tanh(const Vectorized<S>& x) {
  constexpr S limit = ExpConstants<S>::tanh_limit;
  const auto [half_scale, p] = exp_parts(hold(x + x, -2 * limit, 2 * limit));
  const Vectorized<S> half(S(0.5));
  const Vectorized<S> half_m = at::vec::fmadd(half_scale, p, half_scale - half);
  return divide(half_m, half_m + Vectorized<S>(1)) | (x & Vectorized<S>(S(-0.0)));  // keeps -0
}

template <typename S>
FOURFOLD_FN Vectorized<S> select(const Vectorized<S>& mask, const Vectorized<S>& yes, const Vectorized<S>& no) {
  return Vectorized<S>::blendv(no, yes, mask);
}

#if defined(CPU_CAPABILITY_AVX512)
// Selects bitwise: at::vec's comparisons return vectors of ones and zeros, which its blendv would convert back to a
// mask register, taking more than twice as long.
FOURFOLD_FN __m512i select_bits(__m512i mask, __m512i yes, __m512i no) {
  return _mm512_ternarylogic_epi64(mask, yes, no, 0xca);
}
FOURFOLD_FN Vectorized<float> select(
    const Vectorized<float>& mask, const Vectorized<float>& yes, const Vectorized<float>& no) {
  return _mm512_castsi512_ps(
      select_bits(_mm512_castps_si512(mask), _mm512_castps_si512(yes), _mm512_castps_si512(no)));
}
FOURFOLD_FN Vectorized<double> select(
    const Vectorized<double>& mask, const Vectorized<double>& yes, const Vectorized<double>& no) {
  return _mm512_castsi512_pd(
      select_bits(_mm512_castpd_si512(mask), _mm512_castpd_si512(yes), _mm512_castpd_si512(no)));
}
#endif

}  // namespace fourfold::cpu::FOURFOLD_CPU_LEVEL
