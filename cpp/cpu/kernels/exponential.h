// exp, expm1, exp2, tanh and the logistic function for a vector, correct for every argument: subnormal results are
// rounded, not flushed, and signed zeros, infinities and NaN are as in C. math.h has faster ones for the cells of
// recurrent layers. In float, no product, quotient or conversion has a subnormal operand or result.
//
// float: expm1 by math.h's reduction and polynomial. The others by x = n ln2 + r, n a multiple of 1/8 and |r| <= ln2 / 16:
// 2^n from a table of eight numbers, exp(r) by a minimax polynomial (coefficients rounded one by one, relative error
// 2.6e-8, 2.7e-8 for 2^r). Without an instruction for the table, by math.h's polynomial, and one for 2^r, |r| <= 1/2,
// of relative error 3.1e-9. Bounds in ulp, tested over all floats: exp_exact 1.3, expm1_exact 1.6, exp2 1.3,
// sigmoid_exact 2.5. tanh_exact of float is math.h's tanh.
//
// double: x = n ln2 + r, |r| <= ln2 / 2, and minimax polynomials for exp(r) and 2^r (Remez' algorithm, coefficients rounded
// one by one, relative errors 2.2e-17 of expm1(r) and 3.5e-17). 2^n is added to the exponent bits. This suffices for
// arguments within ±708; vectors with others are recomputed. Bounds in ulp, tested over random numbers: exp_exact 1,
// exp2 1.2, expm1_exact 1.5, sigmoid_exact 2.5, tanh_exact 2.
#pragma once

#include "cpu/kernels/lanes.h"

namespace fourfold::cpu::FOURFOLD_CPU_LEVEL {

// Below this exp is zero. The C library is slow for such arguments.
template <typename S>
inline constexpr S least_exponent = sizeof(S) == sizeof(float) ? S(-104) : S(-746);

// x = n ln2 + r, where n = whole(shifted). Not nested in another struct: GCC 12 would copy the vectors through memory.
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
FOURFOLD_FN Floats exponent_of(const Power& p) { return p.shifted - Floats(eighths_magic); }  // scale() rounds it down
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

// As for float; low: the rounding error of r.
struct LongReduced {
  Doubles shifted, r, low;
};

FOURFOLD_FN LongReduced exp_reduced(const Doubles& x) {
  using C = ExpConstants<double>;
  const Doubles shifted = shifted_product(x, 1.4426950408889634);
  const Doubles n = whole(shifted);
  const Doubles high = at::vec::fmadd(n, Doubles(-C::ln2_high), x);
  const Doubles r = at::vec::fmadd(n, Doubles(-C::ln2_low), high);
  return {shifted, r, at::vec::fmadd(n, Doubles(-C::ln2_low), high - r)};
}

// expm1(r + low) - r
FOURFOLD_FN Doubles expm1_tail(const Doubles& r, const Doubles& low) {
  static constexpr double q[] = {0.5000000000000007,     0.16666666666666696,    0.04166666666656055,
                                 0.008333333333285009,   0.001388888893674166,   0.00019841270019832133,
                                 2.4801499080008086e-05, 2.7557075927640772e-06, 2.7628500233835967e-07,
                                 2.517748197806794e-08};
  return at::vec::fmadd(in_two_chains(r, q) * r, r, low);
}

FOURFOLD_FN Doubles expm1_near(const LongReduced& of) { return of.r + expm1_tail(of.r, of.low); }
FOURFOLD_FN Doubles exp_near(const LongReduced& of) { return Doubles(1.0) + expm1_near(of); }

// Adds a number far smaller than r. exp of r + low is computed to first order in low, so low is kept as small as
// possible.
FOURFOLD_FN LongReduced plus(const LongReduced& to, const Doubles& small) {
  const Doubles rest = to.low + small, r = to.r + rest;
  return {to.shifted, r, rest - (r - to.r)};
}

// x 2^n, where n = whole(shifted), x is about 1, and the result is a normal number.
FOURFOLD_FN Doubles scale(const Doubles& x, const Doubles& shifted) {
  return float_of(bits_of(x) + (bits_of(shifted) << Longs(52)));
}

// The same for any result, n within ±1100; below: where the result is less than least_normal. The product with 2^-64 is
// rounded by an addition, as in lowered().
FOURFOLD_FN Doubles scale_gradually(const Doubles& x, const Doubles& shifted, const DoubleMask& below) {
  const Doubles zero(0.0), one(1.0);
  const DoubleMask above = less(Doubles(ExpConstants<double>::round_magic + 1000), shifted);
  const Doubles step = choose(below, Doubles(64.0), choose(above, Doubles(-64.0), zero));
  const Doubles back = choose(below, Doubles(0x1p-64), choose(above, Doubles(0x1p64), one));
  const Doubles least = where_true(below, least_normal<double>);
  return at::vec::fmadd(scale(x, shifted + step), back, least) - least;
}

// Whether exp(x) and exp(-x) are normal numbers in all lanes; false for NaN.
FOURFOLD_FN bool all_ordinary(const Doubles& x) { return all(at_most(x.abs(), Doubles(708.0))); }

// The result, or x if x is NaN, for which 2^n is arbitrary.
FOURFOLD_FN Doubles unless_nan(const Doubles& x, const Doubles& result) { return choose(either_nan(x, x), x, result); }

inline constexpr double smallest_ordinary = -708.3964185322641;  // the smallest x with exp(x) >= least_normal

// exp(x + low)
__attribute__((noinline)) inline Doubles exp_gradually(const Doubles& x, const Doubles& low) {
  const Doubles held = hold(x, -746.0, 710.0);
  const LongReduced reduced = plus(exp_reduced(held), low);
  const Doubles power = exp_near(reduced);
  return unless_nan(x, scale_gradually(power, reduced.shifted, less(held, Doubles(smallest_ordinary))));
}

FOURFOLD_FN Doubles exp_of_double(const Doubles& x) {
  const LongReduced reduced = exp_reduced(x);
  const Doubles result = scale(exp_near(reduced), reduced.shifted);
  if (all_ordinary(x)) [[likely]] return result;
  return exp_gradually(x, Doubles(0.0));
}

// 2^r for x = n + r, n = whole(shifted).
FOURFOLD_FN Doubles exp2_near(const Doubles& x, const Doubles& shifted) {
  static constexpr double c[] = {0.6931471805599457,     0.240226506959101,      0.055504108664788956,
                                 0.009618129107606838,   0.0013333558153522838,  0.00015403530439959108,
                                 1.5252727464893052e-05, 1.3215444147536697e-06, 1.0180566740599798e-07,
                                 7.072259592128298e-09,  4.095773851725984e-10};
  const Doubles r = x - whole(shifted);
  return at::vec::fmadd(in_two_chains(r, c), r, Doubles(1.0));
}

__attribute__((noinline)) inline Doubles exp2_gradually(const Doubles& x) {
  const Doubles held = hold(x, -1076.0, 1025.0), shifted = shifted_product(held, 1.0);
  return unless_nan(x, scale_gradually(exp2_near(held, shifted), shifted, less(held, Doubles(-1022.0))));
}

FOURFOLD_FN Doubles exp2_of_double(const Doubles& x) {
  const Doubles shifted = shifted_product(x, 1.0), result = scale(exp2_near(x, shifted), shifted);
  if (all(at_most(x.abs(), Doubles(1022.0)))) [[likely]] return result;
  return exp2_gradually(x);
}

// (exp(x) - 1) / 2, because 2^n itself overflows for the largest arguments, and its rounding error.
struct HalfExpm1 {
  Doubles value, lost;
};

FOURFOLD_FN HalfExpm1 half_expm1(const Doubles& x) {
  const auto [shifted, r, low] = exp_reduced(x);
  const Doubles half = scale(Doubles(0.5), shifted), tail = expm1_tail(r, low);
  const Doubles first = at::vec::fmadd(half, r, half - Doubles(0.5)), value = at::vec::fmadd(half, tail, first);
  return {value, at::vec::fmadd(half, tail, first - value)};
}

FOURFOLD_FN Doubles expm1_of_double(const Doubles& x) {
  const DoubleMask tiny = less(x.abs(), Doubles(0x1p-54));  // halving may lose a bit
  const Doubles result = choose(tiny, x, half_expm1(x).value * Doubles(2.0));
  if (all_ordinary(x)) [[likely]] return result;
  return choose(tiny, x, half_expm1(hold(x, -60.0, 709.79)).value * Doubles(2.0));
}

// m / (m + 2) with m = expm1(2|x|), which keeps its relative error near zero, or 1 - 2 / (m + 2).
FOURFOLD_FN Doubles tanh_of_double(const Doubles& x) {
  const Doubles a = x.abs(), one(1.0);
  const auto [half_m, lost] = half_expm1(hold(a + a, 0.0, 40.0));
  const DoubleMask near = less(a, Doubles(0.55));
  const Doubles divisor = half_m + one;
  const Doubles quotient = choose(near, half_m, Doubles(-1.0)) / divisor;
  const Doubles rest = lost - quotient * (half_m - (divisor - one) + lost);
  return choose(near, at::vec::fmadd(rest, one - quotient, quotient), one + quotient) | sign_of(x);
}

__attribute__((noinline)) inline Doubles sigmoid_gradually(const Doubles& x) {
  const Doubles divisor = exp_gradually(x.neg(), Doubles(0.0)) + Doubles(1.0);
  const Doubles least = where_true(less(Doubles(0x1p1022), divisor), least_normal<double>);
  return at::vec::fmadd(Doubles(0x1p64) / divisor, Doubles(0x1p-64), least) - least;
}

FOURFOLD_FN Doubles sigmoid_of_double(const Doubles& x) {
  if (!all_ordinary(x)) [[unlikely]] return sigmoid_gradually(x);
  const LongReduced reduced = exp_reduced(x.neg());
  const Doubles one(1.0);
  return one / (scale(exp_near(reduced), reduced.shifted) + one);
}

template <typename S>
FOURFOLD_FN Vectorized<S> exp_exact(const Vectorized<S>& x) {
  if constexpr (by_library<S>) {
    return by_lane([](S v) { return v < least_exponent<S> ? 0 : std::exp(v); }, x);
  } else if constexpr (std::is_same_v<S, double>) {
    return exp_of_double(x);
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
  } else if constexpr (std::is_same_v<S, double>) {
    return expm1_of_double(x);
  } else {
    const auto [shifted, r] = exp_reduced(hold(x, -30.0f, ExpConstants<float>::largest));
    // Half the result, because 2^n itself overflows for the largest arguments. Halving a very small number loses a bit.
    const Floats half = float_of((bits_of(shifted) + Ints(126)) << Ints(23));
    const Floats result = at::vec::fmadd(half, expm1_near(r), half - Floats(0.5f)) * Floats(2.0f);
    return choose(less(x.abs(), Floats(0x1p-64f)), x, result);
  }
}

template <typename S>
FOURFOLD_FN Vectorized<S> exp2(const Vectorized<S>& x) {
  if constexpr (by_library<S>) {
    return by_lane([](S v) { return v < S(2) * least_exponent<S> ? 0 : std::exp2(v); }, x);
  } else if constexpr (std::is_same_v<S, double>) {
    return exp2_of_double(x);
  } else {
    const Floats held = hold(x, -151.0f, 129.0f);
    const Power power = exp2_power(held);
    return scale_gradually(power.x, exponent_of(power), less(held, Floats(-126.0f)));
  }
}

// 1 + exp(-x); infinite if exp(-x) is.
FOURFOLD_FN Floats sigmoid_divisor(const Floats& x) {
  const Power power = exp_power(hold(x.neg(), -30.0f, ExpConstants<float>::largest));
  return scale(power.x, exponent_of(power)) + Floats(1.0f);
}

// As in torch: zero if exp(-x) is infinite.
template <typename S>
FOURFOLD_FN Vectorized<S> sigmoid_exact(const Vectorized<S>& x) {
  if constexpr (by_library<S>) {
    return by_lane([](S v) { return 1 / (1 + std::exp(-v)); }, x);
  } else if constexpr (std::is_same_v<S, double>) {
    return sigmoid_of_double(x);
  } else {
    const Floats divisor = sigmoid_divisor(x);
    return lowered(Floats(0x1p64f) / divisor, less(Floats(0x1p126f), divisor));
  }
}

template <typename S>
FOURFOLD_FN Vectorized<S> tanh_exact(const Vectorized<S>& x) {
  if constexpr (!by_library<S> && std::is_same_v<S, double>) {
    return tanh_of_double(x);
  } else {
    return tanh(x);
  }
}

}  // namespace fourfold::cpu::FOURFOLD_CPU_LEVEL
