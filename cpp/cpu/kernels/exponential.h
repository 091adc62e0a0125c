// exp, expm1, exp2 and the logistic function for a vector, right for every argument: subnormal results are rounded, not
// flushed, and signed zeros, infinities and NaN are C's. math.h has others for the cells of recurrent layers. In float no
// argument makes a product, a quotient or a conversion whose operand or result is subnormal.
//
// float: expm1 by math.h's reduction and polynomial. The others by x = n ln2 + r, n a multiple of 1/8 and |r| <= ln2 / 16:
// 2^n from a table of eight numbers, exp(r) by a minimax polynomial (coefficients rounded one by one, relative error
// 2.6e-8, 2.7e-8 for 2^r). Where there is no instruction for the table, by math.h's polynomial, and one for 2^r,
// |r| <= 1/2, of relative error 3.1e-9. Bounds in ulp, tested over all floats: exp_exact 1.3, expm1_exact 1.6, exp2 1.3,
// sigmoid_exact 2.5.
#pragma once

#include "cpu/kernels/lanes.h"

namespace fourfold::cpu::FOURFOLD_CPU_LEVEL {

// What exp is zero of. C's own takes its time to find that out.
template <typename S>
inline constexpr S least_exponent = sizeof(S) == sizeof(float) ? S(-104) : S(-746);

// x = n ln2 + r, where n = whole(shifted). GCC 12 copies a vector in a structure within another by way of memory.
struct ExpReduced {
  Floats shifted, r;
};

FOURFOLD_FN ExpReduced exp_reduced(const Floats& x) {
  using C = ExpConstants<float>;
  const Floats shifted = shifted_product(x, 1.442695041f);
  const Floats n = whole(shifted);
  const Floats r = at::vec::fmadd(n, Floats(-C::ln2_high), x);
  return {shifted, at::vec::fmadd(n, Floats(-C::ln2_low), r)};
}

// A power as x 2^n, x about 1, n = whole(shifted).
struct Power {
  Floats x, shifted;
};

#if defined(CPU_CAPABILITY_AVX512) || defined(CPU_CAPABILITY_AVX2)
// 2^(k/8), twice.
alignas(64) inline constexpr float eighths[] = {
    1.0f, 1.0905077f, 1.1892071f, 1.2968396f, 1.4142135f, 1.5422108f, 1.6817929f, 1.8340081f,
    1.0f, 1.0905077f, 1.1892071f, 1.2968396f, 1.4142135f, 1.5422108f, 1.6817929f, 1.8340081f};
inline constexpr float eighths_magic = ExpConstants<float>::round_magic / 8;  // adding it leaves whole eighths

// 2^m (1 + r slope(r)), m = shifted - eighths_magic
FOURFOLD_FN Power power_of_eighths(const Floats& shifted, const Floats& r, const float (&slope)[3]) {
#if defined(CPU_CAPABILITY_AVX512)
  const Floats entry = _mm512_permutexvar_ps(_mm512_castps_si512(shifted), _mm512_load_ps(eighths));
#else
  const Floats entry = _mm256_permutevar8x32_ps(_mm256_load_ps(eighths), _mm256_castps_si256(shifted));
#endif
  return {at::vec::fmadd(entry * r, horner(r, slope), entry), shifted};
}

FOURFOLD_FN Power exp_power(const Floats& x) {
  using C = ExpConstants<float>;
  static constexpr float slope[] = {1.0f, 0.50006455f, 0.1666686f};
  const Floats magic(eighths_magic), shifted = at::vec::fmadd(x, Floats(1.442695041f), magic), m = shifted - magic;
  const Floats r = at::vec::fmadd(m, Floats(-C::ln2_low), at::vec::fmadd(m, Floats(-C::ln2_high), x));
  return power_of_eighths(shifted, r, slope);
}

FOURFOLD_FN Power exp2_power(const Floats& x) {
  static constexpr float slope[] = {0.69314724f, 0.24025777f, 0.05549621f};
  const Floats magic(eighths_magic), shifted = x + magic;
  return power_of_eighths(shifted, x - (shifted - magic), slope);
}

#if defined(CPU_CAPABILITY_AVX512)
FOURFOLD_FN Floats exponent_of(const Power& p) { return p.shifted - Floats(eighths_magic); }  // scaling rounds it down
#else
FOURFOLD_FN Ints exponent_of(const Power& p) {
  return (bits_of(p.shifted) - bits_of(Floats(eighths_magic))) >> Ints(3);
}
#endif

#else
FOURFOLD_FN Power exp_power(const Floats& x) {
  const auto [shifted, r] = exp_reduced(x);
  const Floats one(1.0f);
  return {at::vec::fmadd(at::vec::fmadd(horner(r, ExpConstants<float>::q), r, one), r, one), shifted};
}

FOURFOLD_FN Power exp2_power(const Floats& x) {
  static constexpr float c[] = {6.931472e-01f,  2.4022648e-01f, 5.5503592e-02f,
                                9.618505e-03f, 1.3391242e-03f, 1.5327497e-04f};
  const Floats shifted = shifted_product(x, 1.0f);
  const Floats r = x - whole(shifted);
  return {at::vec::fmadd(horner(r, c), r, Floats(1.0f)), shifted};
}

FOURFOLD_FN Ints exponent_of(const Power& p) { return exponent_of(p.shifted); }
#endif

template <typename S>
FOURFOLD_FN Vectorized<S> exp_exact(const Vectorized<S>& x) {
  if constexpr (by_library<S>) {
    return by_lane([](S v) { return v < least_exponent<S> ? 0 : std::exp(v); }, x);
  } else {
    const Floats held = hold(x, least_exponent<float>, ExpConstants<float>::largest);
    const Power power = exp_power(held);
    return scale_gradually(power.x, exponent_of(power), less(held, Floats(-87.33654f)));
  }
}

template <typename S>
FOURFOLD_FN Vectorized<S> expm1_exact(const Vectorized<S>& x) {
  if constexpr (by_library<S>) {
    return by_lane([](S v) { return std::expm1(v); }, x);
  } else {
    const auto [shifted, r] = exp_reduced(hold(x, -30.0f, ExpConstants<float>::largest));
    // Half the result, as 2^n itself overflows for the largest arguments. Halving loses a bit of the very small.
    const Floats half = float_of((bits_of(shifted) + Ints(126)) << Ints(23));
    const Floats result = at::vec::fmadd(half, expm1_near(r), half - Floats(0.5f)) * Floats(2.0f);
    return choose(less(x.abs(), Floats(0x1p-64f)), x, result);
  }
}

template <typename S>
FOURFOLD_FN Vectorized<S> exp2(const Vectorized<S>& x) {
  if constexpr (by_library<S>) {
    return by_lane([](S v) { return v < S(2) * least_exponent<S> ? 0 : std::exp2(v); }, x);
  } else {
    const Floats held = hold(x, -151.0f, 129.0f);
    const Power power = exp2_power(held);
    return scale_gradually(power.x, exponent_of(power), less(held, Floats(-126.0f)));
  }
}

// 1 + exp(-x); infinite from where exp(-x) is.
FOURFOLD_FN Floats sigmoid_divisor(const Floats& x) {
  const Power power = exp_power(hold(x.neg(), -30.0f, ExpConstants<float>::largest));
  return scale(power.x, exponent_of(power)) + Floats(1.0f);
}

// As torch's own: zero where exp(-x) is infinite.
template <typename S>
FOURFOLD_FN Vectorized<S> sigmoid_exact(const Vectorized<S>& x) {
  if constexpr (by_library<S>) {
    return by_lane([](S v) { return 1 / (1 + std::exp(-v)); }, x);
  } else {
    const Floats divisor = sigmoid_divisor(x);
    return lowered(Floats(0x1p64f) / divisor, less(Floats(0x1p126f), divisor));
  }
}

}  // namespace fourfold::cpu::FOURFOLD_CPU_LEVEL
