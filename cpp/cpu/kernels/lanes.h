// Vector operations of the elementary functions beyond at::vec: comparisons whose masks may stay in mask registers,
// rounding, scaling by powers of two, and the C library's functions lane by lane.
//
// The functions use fused multiply-adds. avx2 and avx512 perform the same operations in the same order, so their
// results have the same bits. Without fused multiply-adds the functions are the C library's.
#pragma once

#include <cmath>
#include <limits>

#include "cpu/kernels/math.h"

namespace fourfold::cpu::FOURFOLD_CPU_LEVEL {

using Floats = Vectorized<float>;
using Doubles = Vectorized<double>;
using Ints = Vectorized<int32_t>;
using Longs = Vectorized<int64_t>;

inline constexpr float infinity = std::numeric_limits<float>::infinity();
inline constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();
inline constexpr float smallest_normal = std::numeric_limits<float>::min();
template <typename S>
inline constexpr S least_normal = std::numeric_limits<S>::min();

#if defined(CPU_CAPABILITY_AVX512) || defined(CPU_CAPABILITY_AVX2) || defined(__ARM_FEATURE_FMA)
inline constexpr bool fused = true;
#else
inline constexpr bool fused = false;
#endif

// Whether functions of S use the C library.
template <typename S>
inline constexpr bool by_library = !fused;

// Comparisons are false for NaN. Masks can be combined by & and |.
#if defined(CPU_CAPABILITY_AVX512)
using Mask = __mmask16;
FOURFOLD_FN Mask less(const Floats& a, const Floats& b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
FOURFOLD_FN Mask at_most(const Floats& a, const Floats& b) { return _mm512_cmp_ps_mask(a, b, _CMP_LE_OQ); }
FOURFOLD_FN Mask equal(const Floats& a, const Floats& b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }
FOURFOLD_FN Mask either_nan(const Floats& a, const Floats& b) { return _mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q); }
FOURFOLD_FN Mask has_bit(const Ints& a, int32_t bit) { return _mm512_test_epi32_mask(a, _mm512_set1_epi32(bit)); }
FOURFOLD_FN Floats choose(Mask mask, const Floats& yes, const Floats& no) {
  return _mm512_mask_blend_ps(mask, no, yes);
}
FOURFOLD_FN Floats where_true(Mask mask, float value) { return _mm512_maskz_mov_ps(mask, _mm512_set1_ps(value)); }
FOURFOLD_FN bool any(Mask mask) { return mask != 0; }
FOURFOLD_FN bool all(Mask mask) { return mask == 0xffff; }

// A separate type, because & of two __mmask8 gives int, like & of two __mmask16.
struct DoubleMask {
  __mmask8 bits;
};
FOURFOLD_FN DoubleMask operator&(DoubleMask a, DoubleMask b) { return {static_cast<__mmask8>(a.bits & b.bits)}; }
FOURFOLD_FN DoubleMask operator|(DoubleMask a, DoubleMask b) { return {static_cast<__mmask8>(a.bits | b.bits)}; }
FOURFOLD_FN DoubleMask less(const Doubles& a, const Doubles& b) { return {_mm512_cmp_pd_mask(a, b, _CMP_LT_OQ)}; }
FOURFOLD_FN DoubleMask at_most(const Doubles& a, const Doubles& b) { return {_mm512_cmp_pd_mask(a, b, _CMP_LE_OQ)}; }
FOURFOLD_FN DoubleMask equal(const Doubles& a, const Doubles& b) { return {_mm512_cmp_pd_mask(a, b, _CMP_EQ_OQ)}; }
FOURFOLD_FN DoubleMask either_nan(const Doubles& a, const Doubles& b) {
  return {_mm512_cmp_pd_mask(a, b, _CMP_UNORD_Q)};
}
FOURFOLD_FN DoubleMask has_bit(const Longs& a, int64_t bit) {
  return {_mm512_test_epi64_mask(a, _mm512_set1_epi64(bit))};
}
FOURFOLD_FN Doubles choose(DoubleMask mask, const Doubles& yes, const Doubles& no) {
  return _mm512_mask_blend_pd(mask.bits, no, yes);
}
FOURFOLD_FN Doubles where_true(DoubleMask mask, const Doubles& value) { return _mm512_maskz_mov_pd(mask.bits, value); }
FOURFOLD_FN bool any(DoubleMask mask) { return mask.bits != 0; }
FOURFOLD_FN bool all(DoubleMask mask) { return mask.bits == 0xff; }
#else
using Mask = Floats;
FOURFOLD_FN Mask less(const Floats& a, const Floats& b) { return a < b; }
FOURFOLD_FN Mask at_most(const Floats& a, const Floats& b) { return a <= b; }
FOURFOLD_FN Mask equal(const Floats& a, const Floats& b) { return a == b; }
FOURFOLD_FN Mask either_nan(const Floats& a, const Floats& b) { return (a != a) | (b != b); }
FOURFOLD_FN Mask has_bit(const Ints& a, int32_t bit) { return at::vec::cast<float>((a & Ints(bit)) == Ints(bit)); }
FOURFOLD_FN Floats choose(const Mask& mask, const Floats& yes, const Floats& no) {
  return Floats::blendv(no, yes, mask);
}
FOURFOLD_FN Floats where_true(const Mask& mask, float value) { return mask & Floats(value); }

using DoubleMask = Doubles;
FOURFOLD_FN DoubleMask less(const Doubles& a, const Doubles& b) { return a < b; }
FOURFOLD_FN DoubleMask at_most(const Doubles& a, const Doubles& b) { return a <= b; }
FOURFOLD_FN DoubleMask equal(const Doubles& a, const Doubles& b) { return a == b; }
FOURFOLD_FN DoubleMask either_nan(const Doubles& a, const Doubles& b) { return (a != a) | (b != b); }
FOURFOLD_FN DoubleMask has_bit(const Longs& a, int64_t bit) {
  return at::vec::cast<double>((a & Longs(bit)) == Longs(bit));
}
FOURFOLD_FN Doubles choose(const DoubleMask& mask, const Doubles& yes, const Doubles& no) {
  return Doubles::blendv(no, yes, mask);
}
FOURFOLD_FN Doubles where_true(const DoubleMask& mask, const Doubles& value) { return mask & value; }
#if defined(CPU_CAPABILITY_AVX2)
FOURFOLD_FN bool any(const DoubleMask& mask) { return _mm256_movemask_pd(mask) != 0; }
FOURFOLD_FN bool all(const DoubleMask& mask) { return _mm256_movemask_pd(mask) == 0xf; }
FOURFOLD_FN bool any(const Mask& mask) { return _mm256_movemask_ps(mask) != 0; }
FOURFOLD_FN bool all(const Mask& mask) { return _mm256_movemask_ps(mask) == 0xff; }
#else
FOURFOLD_FN bool any(const Mask& mask) { return mask.zero_mask() != (1 << Floats::size()) - 1; }  // all ones is NaN
FOURFOLD_FN bool all(const Mask& mask) { return mask.zero_mask() == 0; }
FOURFOLD_FN bool any(const DoubleMask& mask) { return mask.zero_mask() != (1 << Doubles::size()) - 1; }
FOURFOLD_FN bool all(const DoubleMask& mask) { return mask.zero_mask() == 0; }
#endif
#endif

FOURFOLD_FN Ints bits_of(const Floats& x) { return at::vec::cast<int32_t>(x); }
FOURFOLD_FN Longs bits_of(const Doubles& x) { return at::vec::cast<int64_t>(x); }
FOURFOLD_FN Floats float_of(const Ints& bits) { return at::vec::cast<float>(bits); }
FOURFOLD_FN Doubles float_of(const Longs& bits) { return at::vec::cast<double>(bits); }

// A logical right shift, for non-negative numbers. at::vec's shift is arithmetic, for which AVX2 has no 64-bit
// instruction.
template <int by>
FOURFOLD_FN Longs right_by(const Longs& x) {
#if defined(CPU_CAPABILITY_AVX512)
  return _mm512_srli_epi64(x, by);
#elif defined(CPU_CAPABILITY_AVX2)
  return _mm256_srli_epi64(x, by);
#else
  return x >> Longs(by);
#endif
}

template <typename S>
FOURFOLD_FN Vectorized<S> sign_of(const Vectorized<S>& x) { return x & Vectorized<S>(S(-0.0)); }

// All bits set in lanes with the sign bit.
FOURFOLD_FN Floats sign_as_mask(const Floats& x) { return float_of(bits_of(x) >> Ints(31)); }
FOURFOLD_FN Doubles sign_as_mask(const Doubles& x) {
#if defined(CPU_CAPABILITY_AVX512)
  return _mm512_castsi512_pd(_mm512_srai_epi64(_mm512_castpd_si512(x), 63));
#elif defined(CPU_CAPABILITY_AVX2)
  const __m256i words = _mm256_srai_epi32(_mm256_castpd_si256(x), 31);
  return _mm256_castsi256_pd(_mm256_shuffle_epi32(words, 0xf5));
#else
  return float_of(bits_of(x) >> Longs(63));
#endif
}

// Replaces subnormal numbers by zero.
FOURFOLD_FN Floats without_subnormal(const Floats& x) {
#if defined(CPU_CAPABILITY_AVX512)
  constexpr int subnormal = 0x20;
  return _mm512_mask_mov_ps(x, _mm512_fpclass_ps_mask(x, subnormal), _mm512_setzero_ps());
#else
  return x & at_most(Floats(smallest_normal), x.abs());
#endif
}

// c[0] + c[1] x + c[2] x² + …
template <typename S, int n>
FOURFOLD_FN Vectorized<S> horner(const Vectorized<S>& x, const S (&c)[n]) {
  Vectorized<S> sum(c[n - 1]);
#pragma GCC unroll 32
  for (int k = n - 2; k >= 0; --k) sum = at::vec::fmadd(sum, x, Vectorized<S>(c[k]));
  return sum;
}

// The same in two chains, of even and of odd powers: the latency of one long chain leaves execution units idle.
template <int n>
FOURFOLD_FN Doubles in_two_chains(const Doubles& x, const double (&c)[n]) {
  const Doubles square = x * x;
  Doubles sum[2] = {Doubles(c[n - 1]), Doubles(c[n - 2])};
#pragma GCC unroll 32
  for (int k = n - 3; k >= 0; --k) {
    Doubles& part = sum[(n - 1 - k) % 2];
    part = at::vec::fmadd(part, square, Doubles(c[k]));
  }
  return n % 2 == 1 ? at::vec::fmadd(sum[1], x, sum[0]) : at::vec::fmadd(sum[0], x, sum[1]);
}

// The same in pairs, slower but with the rounding of horner(): for coefficients of both signs.
template <int n>
FOURFOLD_FN Doubles in_pairs(const Doubles& x, const double (&c)[n]) {
  const Doubles square = x * x;
  const auto pair = [&](int k) { return at::vec::fmadd(Doubles(c[k + 1]), x, Doubles(c[k])); };
  constexpr int last = n % 2 == 1 ? n - 1 : n - 2;
  Doubles sum = n % 2 == 1 ? Doubles(c[last]) : pair(last);
#pragma GCC unroll 32
  for (int k = last - 2; k >= 0; k -= 2) sum = at::vec::fmadd(sum, square, pair(k));
  return sum;
}

// exp(r) - 1 for |r| <= ln2 / 2. Avoids the square of r, which would be subnormal for very small r.
FOURFOLD_FN Floats expm1_near(const Floats& r) { return at::vec::fmadd(horner(r, ExpConstants<float>::q) * r, r, r); }

// Rounds a b to an integer, for magnitudes below 2^22 (double: 2^51): the low 22 (51) bits of the result are the
// integer.
template <typename S>
FOURFOLD_FN Vectorized<S> shifted_product(const Vectorized<S>& a, S b) {
  return at::vec::fmadd(a, Vectorized<S>(b), Vectorized<S>(ExpConstants<S>::round_magic));
}

template <typename S>
FOURFOLD_FN Vectorized<S> whole(const Vectorized<S>& shifted) {
  return shifted - Vectorized<S>(ExpConstants<S>::round_magic);
}

#if defined(CPU_CAPABILITY_AVX512)
using Exponents = Floats;  // rounded down
FOURFOLD_FN Exponents exponent_of(const Floats& shifted) { return whole(shifted); }
#else
using Exponents = Ints;
FOURFOLD_FN Exponents exponent_of(const Floats& shifted) {
  return bits_of(shifted) - bits_of(Floats(ExpConstants<float>::round_magic));
}

// 2^n in two factors: x times the first, and the second.
struct Scaled {
  Floats x, rest;
};

FOURFOLD_FN Scaled half_scaled(const Floats& x, const Ints& n) {
  const Ints half = n >> Ints(1);
  const auto power = [](const Ints& k) { return float_of((k + Ints(127)) << Ints(23)); };
  return {x * power(half), power(n - half)};
}
#endif

// x 2^n, rounded once, for n within ±250, x about 1, and a result >= smallest_normal.
FOURFOLD_FN Floats scale(const Floats& x, const Exponents& n) {
#if defined(CPU_CAPABILITY_AVX512)
  return _mm512_scalef_ps(x, n);
#else
  const auto [scaled, rest] = half_scaled(x, n);
  return scaled * rest;
#endif
}

// 2^-64 x, rounded once. below: where that is less than smallest_normal. A product with a subnormal result takes CPUs a
// hundred times as long, an addition doesn't. So it is rounded by adding a number with the same last place.
FOURFOLD_FN Floats lowered(const Floats& x, const Mask& below) {
  const Floats least = where_true(below, smallest_normal);
  return at::vec::fmadd(x, Floats(0x1p-64f), least) - least;
}

// scale() for any result; below: where it is less than smallest_normal.
FOURFOLD_FN Floats scale_gradually(const Floats& x, const Exponents& n, const Mask& below) {
#if defined(CPU_CAPABILITY_AVX512)
  const Floats raised = _mm512_scalef_ps(x, _mm512_mask_add_ps(n, below, n, _mm512_set1_ps(64.0f)));
  const Floats least = where_true(below, 0x1p-62f);  // 2^64 smallest_normal; its bits are subtracted below
  return float_of(bits_of(raised + least) - bits_of(least));
#else
  const auto [scaled, rest] = half_scaled(x, n);
  const Floats least = where_true(below, smallest_normal);
  return at::vec::fmadd(scaled, rest, least) - least;
#endif
}

// Applies f to each lane of x, or of x and y.
template <typename S, typename F>
inline Vectorized<S> by_lane(const F& f, const Vectorized<S>& x) {
  alignas(64) S values[Vectorized<S>::size()];
  x.store(values);
  for (S& value : values) value = f(value);
  return Vectorized<S>::loadu(values);
}

template <typename S, typename F>
inline Vectorized<S> by_lane(const F& f, const Vectorized<S>& x, const Vectorized<S>& y) {
  alignas(64) S left[Vectorized<S>::size()], right[Vectorized<S>::size()];
  x.store(left);
  y.store(right);
  for (int k = 0; k < Vectorized<S>::size(); ++k) left[k] = f(left[k], right[k]);
  return Vectorized<S>::loadu(left);
}

}  // namespace fourfold::cpu::FOURFOLD_CPU_LEVEL
