// pow and hypot for a vector.
//
// float: |x|^y = 2^(y log2|x|) in double. log2|x| = k + log2(c) + log2(z / c) for |x| = 2^k z and one of 16 c near z,
// whose reciprocals have 9 bits, so that z / c - 1 is exact; minimax polynomials for log2(1 + r), |r| <= 0.0315, by
// linear programming, and for 2^r, |r| <= 1/2, by Remez' algorithm, of relative errors 6.3e-12 and 1.9e-9. Without AVX2
// pow is the C library's. Bounds in ulp, tested over random floats: pow 0.6, hypot 1.1.
#pragma once

#include "cpu/kernels/lanes.h"

namespace fourfold::cpu::FOURFOLD_CPU_LEVEL {

#if defined(CPU_CAPABILITY_AVX512) || defined(CPU_CAPABILITY_AVX2)

alignas(64) inline constexpr double reciprocals[] = {
    0x1.66p+0,  0x1.57p+0, 0x1.498p+0, 0x1.3c8p+0, 0x1.31p+0, 0x1.26p+0, 0x1.1b8p+0, 0x1.12p+0,
    0x1.098p+0, 0x1p+0,    0x1.e5p-1,  0x1.cap-1,  0x1.b2p-1, 0x1.9cp-1, 0x1.88p-1,  0x1.76p-1};
// log2 of what they are the reciprocals of.
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

// (2^k z)^y for half a vector, where `place` is the table's place of z.
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
  const Ints from_least = bits_of(x) - Ints(0x3f330000);  // 0.699, the least z
  const Ints shift = from_least & Ints(static_cast<int32_t>(0xff800000));
  const Floats k = at::vec::convert_to_fp_of_same_size<float>(shift >> Ints(23)) + exponent;
  const Floats z = float_of(bits_of(x) - shift);
  const Floats place = float_of(from_least >> Ints(19));
  return narrowed(pow_half(low_half(k), low_half(z), bits_of(low_half(place)), low_half(y)),
                  pow_half(high_half(k), high_half(z), bits_of(high_half(place)), high_half(y)));
}

// For all arguments, by the cases of C's Annex F.
__attribute__((noinline)) inline Floats pow_unusual(const Floats& x, const Floats& y) {
  const Floats zero(0.0f), one(1.0f), inf(infinity), a = x.abs();
  const Mask subnormal = less(a, Floats(smallest_normal));
  Floats result = pow_ordinary(choose(subnormal, a * Floats(0x1p24f), a), choose(subnormal, Floats(-24.0f), zero), y);

  const Mask rising = less(zero, y), is_zero = equal(a, zero), is_infinite = equal(a, inf);
  result = choose(is_zero, choose(rising, zero, inf), result);
  result = choose(is_infinite, choose(rising, inf, zero), result);

  const Floats half = y * Floats(0.5f);
  const Floats sign = choose(equal(half.trunc(), half), zero, sign_of(x));  // if y is integral
  const Floats fractional = choose(is_zero | is_infinite, result, Floats(not_a_number));
  const Floats of_negative = choose(equal(y.trunc(), y), result ^ sign, fractional);
  result = choose(less(x, zero) | is_zero, of_negative, result);

  result = choose(either_nan(x, y), x + y, result);
  const Mask both_ways = equal(a, one) & equal(y.abs(), inf);
  return choose(equal(x, one) | equal(y, zero) | both_ways, one, result);
}

#endif

template <typename S>
FOURFOLD_FN Vectorized<S> pow(const Vectorized<S>& x, const Vectorized<S>& y) {
#if defined(CPU_CAPABILITY_AVX512) || defined(CPU_CAPABILITY_AVX2)
  if constexpr (!by_library<S>) {
    const Mask positive = at_most(Floats(smallest_normal), x) & less(x, Floats(infinity));
    if (all(positive & less(y.abs(), Floats(infinity)))) [[likely]] return pow_ordinary(x, Floats(0.0f), y);
    return pow_unusual(x, y);
  }
#endif
  return by_lane([](S v, S w) { return std::pow(v, w); }, x, y);
}

// The square root halves the error of the sum below it.
template <typename S>
FOURFOLD_FN Vectorized<S> hypot(const Vectorized<S>& x, const Vectorized<S>& y) {
  if constexpr (by_library<S>) {
    return by_lane([](S v, S w) { return std::hypot(v, w); }, x, y);
  } else {
    const Floats a = x.abs(), b = y.abs(), one(1.0f);
    const Mask steep = less(a, b);
    const Floats larger = choose(steep, b, a), smaller = choose(steep, a, b);
    const Mask large = less(Floats(0x1p60f), larger), small = less(larger, Floats(0x1p-60f));
    const Floats factor = choose(large, Floats(0x1p-90f), choose(small, Floats(0x1p90f), one));
    const Floats back = choose(large, Floats(0x1p90f), choose(small, Floats(0x1p-90f), one));
    const Floats p = larger * factor, q = smaller * factor;
    const Floats result = at::vec::fmadd(p, p, q * q).sqrt() * back;
    const Mask infinite = equal(a, Floats(infinity)) | equal(b, Floats(infinity));
    return choose(infinite, Floats(infinity), result);
  }
}

}  // namespace fourfold::cpu::FOURFOLD_CPU_LEVEL
