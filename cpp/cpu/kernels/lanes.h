// What the elementary functions need beyond at::vec: comparisons whose masks may stay in mask registers, rounding,
// scaling by powers of two, and the C library's functions lane by lane.
//
// The functions of float are made of fused products. avx2 and avx512 take the same steps in the same order, so their
// results have the same bits. Without fused products, and for double, the functions are the C library's.
#pragma once

#include <cmath>
#include <limits>

#include "cpu/kernels/math.h"

namespace fourfold::cpu::FOURFOLD_CPU_LEVEL {

using Floats = Vectorized<float>;
using Doubles = Vectorized<double>;
using Ints = Vectorized<int32_t>;

inline constexpr float infinity = std::numeric_limits<float>::infinity();
inline constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();
inline constexpr float smallest_normal = std::numeric_limits<float>::min();

#if defined(CPU_CAPABILITY_AVX512) || defined(CPU_CAPABILITY_AVX2) || defined(__ARM_FEATURE_FMA)
inline constexpr bool fused = true;
#else
inline constexpr bool fused = false;
#endif

// Whether functions of S are the C library's.
template <typename S>
inline constexpr bool by_library = std::is_same_v<S, double> || !fused;

// Comparisons are false for NaN. Masks combine by & and |.
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
FOURFOLD_FN bool any(Mask mask) { return mask != 0; }
FOURFOLD_FN bool all(Mask mask) { return mask == 0xffff; }
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
#if defined(CPU_CAPABILITY_AVX2)
FOURFOLD_FN bool any(const Mask& mask) { return _mm256_movemask_ps(mask) != 0; }
FOURFOLD_FN bool all(const Mask& mask) { return _mm256_movemask_ps(mask) == 0xff; }
#else
FOURFOLD_FN bool any(const Mask& mask) { return mask.zero_mask() != (1 << Floats::size()) - 1; }  // all ones is NaN
FOURFOLD_FN bool all(const Mask& mask) { return mask.zero_mask() == 0; }
#endif
#endif

FOURFOLD_FN Ints bits_of(const Floats& x) { return at::vec::cast<int32_t>(x); }
FOURFOLD_FN Floats float_of(const Ints& bits) { return at::vec::cast<float>(bits); }

FOURFOLD_FN Floats sign_of(const Floats& x) { return x & Floats(-0.0f); }

// c[0] + c[1] x + c[2] x² + …
template <typename S, int n>
FOURFOLD_FN Vectorized<S> horner(const Vectorized<S>& x, const S (&c)[n]) {
  Vectorized<S> sum(c[n - 1]);
  for (int k = n - 2; k >= 0; --k) sum = at::vec::fmadd(sum, x, Vectorized<S>(c[k]));
  return sum;
}

// Rounds a b, if it is less than 2^22 in magnitude: the low 22 bits of what is returned hold the nearest whole number.
FOURFOLD_FN Floats shifted_product(const Floats& a, float b) {
  return at::vec::fmadd(a, Floats(b), Floats(ExpConstants<float>::round_magic));
}

FOURFOLD_FN Floats whole(const Floats& shifted) { return shifted - Floats(ExpConstants<float>::round_magic); }

// x 2^n, rounded once, where n = whole(shifted) is within ±250 and x about 1.
FOURFOLD_FN Floats scale(const Floats& x, const Floats& shifted) {
#if defined(CPU_CAPABILITY_AVX512)
  return _mm512_scalef_ps(x, whole(shifted));
#else
  const Ints n = bits_of(shifted) - bits_of(Floats(ExpConstants<float>::round_magic));
  const Ints half = n >> Ints(1);
  const auto power = [](const Ints& k) { return float_of((k + Ints(127)) << Ints(23)); };
  return x * power(half) * power(n - half);
#endif
}

// f of each lane of x, or of x and y.
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
