// pow for a vector.
//
// float: |x|^y = 2^(y log2|x|) in double. log2|x| = k + log2(c) + log2(z / c) for |x| = 2^k z and one of 16 c near z,
// whose reciprocals have 9 bits, so that z / c - 1 is exact; minimax polynomials for log2(1 + r), |r| <= 0.0315, by
// linear programming, and for 2^r, |r| <= 1/2, by Remez' algorithm, of relative errors 6.3e-12 and 1.9e-9. Without AVX2
// pow of float is the C library's. Bound in ulp, tested over random floats: 0.6.
//
// double: x^y = exp(y log x), log x a sum of two numbers with a relative error of 2^-65: 2 s + s³ (2/3 + s² Q(s²)) of
// s = (m - 1) / (m + 1), x = 2^e m, Q a minimax polynomial (Remez' algorithm, coefficients rounded one by one, relative
// error of the whole 7.7e-23). Bound in ulp, tested over random numbers: 1.1.
#pragma once

#include "cpu/kernels/exponential.h"
#include "cpu/kernels/logarithm.h"

namespace fourfold::cpu::FOURFOLD_CPU_LEVEL {

#if defined(CPU_CAPABILITY_AVX512) || defined(CPU_CAPABILITY_AVX2)

alignas(64) inline constexpr double reciprocals[] = {
    0x1.66p+0,  0x1.57p+0, 0x1.498p+0, 0x1.3c8p+0, 0x1.31p+0, 0x1.26p+0, 0x1.1b8p+0, 0x1.12p+0,
    0x1.098p+0, 0x1p+0,    0x1.e5p-1,  0x1.cap-1,  0x1.b2p-1, 0x1.9cp-1, 0x1.88p-1,  0x1.76p-1};
// log2(c), where reciprocals has 1 / c.
alignas(64) inline constexpr double logarithms[] = {
    -0x1.ef6d67328e220p-2, -0x1.b031befe06434p-2, -0x1.74dfb70a66388p-2, -0x1.39683c4a9ce9ap-2,
    -0x1.02baba24d0664p-2, -0x1.98edd077e70dfp-3, -0x1.2d79c6937efddp-3, -0x1.918a16e46335bp-4,
    -0x1.aea3316095f72p-5, 0.0,                   0x1.4023b7b26ac9ep-4,  0x1.494f863b8df35p-3,
    0x1.e857d3d361368p-3,  0x1.4106017c3eca3p-2,  0x1.8a8980abfbd32p-2,  0x1.cffae611ad12bp-2};

#if defined(CPU_CAPABILITY_AVX512)
using HalfFloats = __m256;
using HalfInts = __m256i;
FOURFOLD_FN HalfFloats low_half(const Floats& x) { return _mm512_castps512_ps256(x); }
FOURFOLD_FN HalfFloats high_half(const Floats& x) { return _mm512_extractf32x8_ps(x, 1); }
FOURFOLD_FN Doubles widened(HalfFloats x) { return _mm512_cvtps_pd(x); }
FOURFOLD_FN Floats narrowed(const Doubles& low, const Doubles& high) {
  return _mm512_insertf32x8(_mm512_castps256_ps512(_mm512_cvtpd_ps(low)), _mm512_cvtpd_ps(high), 1);
}
FOURFOLD_FN Doubles entry(const double (&table)[16], HalfInts k) {
  return _mm512_permutex2var_pd(_mm512_load_pd(table), _mm512_cvtepi32_epi64(k), _mm512_load_pd(table + 8));
}
FOURFOLD_FN HalfInts bits_of(HalfFloats x) { return _mm256_castps_si256(x); }
#else
using HalfFloats = __m128;
using HalfInts = __m128i;
FOURFOLD_FN HalfFloats low_half(const Floats& x) { return _mm256_castps256_ps128(x); }
FOURFOLD_FN HalfFloats high_half(const Floats& x) { return _mm256_extractf128_ps(x, 1); }
FOURFOLD_FN Doubles widened(HalfFloats x) { return _mm256_cvtps_pd(x); }
FOURFOLD_FN Floats narrowed(const Doubles& low, const Doubles& high) {
  return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm256_cvtpd_ps(low)), _mm256_cvtpd_ps(high), 1);
}
FOURFOLD_FN Doubles entry(const double (&table)[16], HalfInts k) {
  return _mm256_i32gather_pd(table, _mm_and_si128(k, _mm_set1_epi32(15)), 8);
}
FOURFOLD_FN HalfInts bits_of(HalfFloats x) { return _mm_castps_si128(x); }
#endif

// 2^p for p within ±1000.
FOURFOLD_FN Doubles exp2_of(const Doubles& p) {
  static constexpr double c[] = {1.0000000005541645,  0.6931472057369935,    0.24022646890561142,   0.05550328777372253,
                                 0.009618488966677012, 0.0013399931084245274, 0.00015345809293326417};
  const Doubles magic(ExpConstants<double>::round_magic);
  const Doubles shifted = p + magic;
  const Doubles fraction = horner(p - (shifted - magic), c);
  return at::vec::cast<double>(at::vec::cast<int64_t>(fraction) +
                               (at::vec::cast<int64_t>(shifted) << Vectorized<int64_t>(52)));
}

// (2^k z)^y for half a vector; place: the table index of z.
FOURFOLD_FN Doubles pow_half(HalfFloats k, HalfFloats z, HalfInts place, HalfFloats y) {
  static constexpr double c[] = {1.4426950408952635,  -0.7213475204774898, 0.48089823268745363,
                                 -0.360673549330203, 0.2888460350736284,  -0.24080726801664668};
  const Doubles r = at::vec::fmadd(widened(z), entry(reciprocals, place), Doubles(-1.0));
  const Doubles log_of_c = widened(k) + entry(logarithms, place);
  const Doubles product = widened(y) * at::vec::fmadd(horner(r, c), r, log_of_c);
  return exp2_of(at::vec::clamp(product, Doubles(-160.0), Doubles(130.0)));
}

// (2^exponent x)^y for normal positive x.
FOURFOLD_FN Floats pow_ordinary(const Floats& x, const Floats& exponent, const Floats& y) {
  const Ints from_least = bits_of(x) - Ints(0x3f330000);  // 0.699, the smallest z
  const Ints shift = from_least & Ints(static_cast<int32_t>(0xff800000));
  const Floats k = at::vec::convert_to_fp_of_same_size<float>(shift >> Ints(23)) + exponent;
  const Floats z = float_of(bits_of(x) - shift);
  const Floats place = float_of(from_least >> Ints(19));
  return narrowed(pow_half(low_half(k), low_half(z), bits_of(low_half(place)), low_half(y)),
                  pow_half(high_half(k), high_half(z), bits_of(high_half(place)), high_half(y)));
}

#endif

// An unevaluated sum; `low` is far smaller than `high`.
struct DoublePair {
  Doubles high, low;
};

// a + b for |a| >= |b| or a = 0, with the rounding error added to `low`.
FOURFOLD_FN DoublePair sum_of(const Doubles& a, const Doubles& b, const Doubles& low) {
  const Doubles high = a + b;
  return {high, (a - high) + b + low};
}

// a b, with the rounding error added to `low`.
FOURFOLD_FN DoublePair product_of(const Doubles& a, const Doubles& b, const Doubles& low) {
  const Doubles high = a * b;
  return {high, at::vec::fmadd(a, b, high.neg()) + low};
}

// log(2^exponent x) for normal positive x.
FOURFOLD_FN DoublePair exact_log(const Doubles& x, const Doubles& exponent) {
  using C = LogConstants<double>;
  static constexpr double c[] = {0.3999999999999998,  0.28571428571443863, 0.22222222217780552, 0.18181818845466433,
                                 0.15384558309759055, 0.13336269626503175, 0.11675667432509265, 0.11982760210434502};
  const Doubles one(1.0), third(2.0 / 3), third_low(0x1.5555555555555p-55);  // the rounding error of 2/3
  const Longs shift = exponent_bits_of(x);
  const Doubles e = exponent_of_bits(shift) + exponent, m = float_of(bits_of(x) - shift);
  const Doubles f = m - one, divisor = m + one, divisor_low = m - (divisor - one);
  const Doubles by = one / divisor, s = f * by;
  const Doubles left = at::vec::fmadd(s.neg(), divisor_low, at::vec::fmadd(s.neg(), divisor, f));
  const Doubles s_low = left * by;
  const DoublePair square = product_of(s, s, (s + s) * s_low);
  const DoublePair cube = product_of(square.high, s, at::vec::fmadd(square.high, s_low, square.low * s));
  const DoublePair factor = sum_of(third, square.high * in_two_chains(square.high, c), third_low);
  const Doubles tail_low = at::vec::fmadd(cube.high, factor.low, cube.low * factor.high);
  const DoublePair tail = product_of(cube.high, factor.high, tail_low);
  const DoublePair of_m = sum_of(s + s, tail.high, tail.low + (s_low + s_low));
  return sum_of(e * Doubles(C::ln2_high), of_m.high, at::vec::fmadd(e, Doubles(C::ln2_low), of_m.low));
}

// (2^exponent x)^y for normal positive x.
FOURFOLD_FN Doubles pow_ordinary(const Doubles& x, const Doubles& exponent, const Doubles& y) {
  const DoublePair log = exact_log(x, exponent);
  const DoublePair product = product_of(y, log.high, y * log.low);
  const DoubleMask within = at_most(product.high.abs(), Doubles(800.0));
  return exp_gradually(product.high, where_true(within, product.low));
}

// For all arguments, with the special cases of C's Annex F.
template <typename S>
__attribute__((noinline)) inline Vectorized<S> pow_unusual(const Vectorized<S>& x, const Vectorized<S>& y) {
  using V = Vectorized<S>;
  using C = LogConstants<S>;
  const V zero(S(0)), one(S(1)), inf(infinity), a = x.abs();
  const auto subnormal = less(a, V(least_normal<S>));
  V result = pow_ordinary(choose(subnormal, a * V(C::subnormal_scale), a),
                          choose(subnormal, V(-C::subnormal_exponent), zero), y);

  const auto rising = less(zero, y), is_zero = equal(a, zero), is_infinite = equal(a, inf);
  result = choose(is_zero, choose(rising, zero, inf), result);
  result = choose(is_infinite, choose(rising, inf, zero), result);

  const V half = y * V(S(0.5));
  const V sign = choose(equal(half.trunc(), half), zero, sign_of(x));  // for integral y
  const V fractional = choose(is_zero | is_infinite, result, V(not_a_number));
  const V of_negative = choose(equal(y.trunc(), y), result ^ sign, fractional);
  result = choose(less(x, zero) | is_zero, of_negative, result);

  result = choose(either_nan(x, y), x + y, result);
  const auto both_ways = equal(a, one) & equal(y.abs(), inf);
  return choose(equal(x, one) | equal(y, zero) | both_ways, one, result);
}

FOURFOLD_FN Doubles pow_of_doubles(const Doubles& x, const Doubles& y) {
  const DoublePair log = exact_log(x, Doubles(0.0));
  const DoublePair product = product_of(y, log.high, y * log.low);
  const DoubleMask positive = at_most(Doubles(least_normal<double>), x) & less(x, Doubles(infinity));
  if (!all(positive & at_most(product.high.abs(), Doubles(708.0)))) [[unlikely]] return pow_unusual(x, y);
  const LongReduced reduced = plus(exp_reduced(product.high), product.low);
  return scale(exp_near(reduced), reduced.shifted);
}

template <typename S>
FOURFOLD_FN Vectorized<S> pow(const Vectorized<S>& x, const Vectorized<S>& y) {
  if constexpr (!by_library<S> && std::is_same_v<S, double>) return pow_of_doubles(x, y);
#if defined(CPU_CAPABILITY_AVX512) || defined(CPU_CAPABILITY_AVX2)
  if constexpr (std::is_same_v<S, float>) {
    const Mask positive = at_most(Floats(smallest_normal), x) & less(x, Floats(infinity));
    if (all(positive & less(y.abs(), Floats(infinity)))) [[likely]] return pow_ordinary(x, Floats(0.0f), y);
    return pow_unusual(x, y);
  }
#endif
  return by_lane([](S v, S w) { return std::pow(v, w); }, x, y);
}

}  // namespace fourfold::cpu::FOURFOLD_CPU_LEVEL
