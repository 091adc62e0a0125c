// log, log2, log10 and log1p for a vector.
//
// float: x = 2^e (1 + f) with -1/4 <= f < 1/2, log(1 + f) = f - f²/2 + f³ P(f), P a minimax polynomial (fitted by
// linear programming, coefficients rounded one by one, relative error of the whole 4.9e-9). Bounds in ulp, tested over
// all floats: log 1, log2 1.6, log10 1.6, log1p 1.
//
// double: x = 2^e (1 + f) with 1 + f between the roots of 1/2 and of 2, log(1 + f) = f - s (f - s² P(s²)), s = f / (2 + f),
// P a minimax polynomial (Remez' algorithm, coefficients rounded one by one, relative error of the whole 1.3e-18). Bounds
// in ulp, tested over random numbers: log 1.5, log2 1.6, log10 1.6, log1p 1.5.
#pragma once

#include "cpu/kernels/lanes.h"

namespace fourfold::cpu::FOURFOLD_CPU_LEVEL {

template <typename S>
struct LogSplit {
  Vectorized<S> e, f;
};

template <typename S>
struct LogConstants;

template <>
struct LogConstants<float> {
  static constexpr float least = 0.75f;  // the least 1 + f
  static constexpr int64_t exponent_bits = 0xff800000;
  static constexpr float subnormal_scale = 0x1p24f, subnormal_exponent = 24.0f;
  static constexpr float ln2_high = 0.693145751953125f, ln2_low = 1.42860677e-6f;
  static constexpr float log2e_rest = 0.442695041f, log2e = 1.442695041f;  // rest: log2(e) - 1
  static constexpr float log10e_rest = -0.0657055181f, log10e = 0.4342944819f;  // rest: log10(e) - 1/2
  static constexpr float log10_2_high = 0.301025390625f, log10_2_low = 4.605038981e-6f;
};

template <>
struct LogConstants<double> {
  static constexpr double least = 0.7071067811865476;
  static constexpr int64_t exponent_bits = static_cast<int64_t>(0xfff0000000000000);
  static constexpr double subnormal_scale = 0x1p54, subnormal_exponent = 54.0;
  static constexpr double ln2_high = 0x1.62e42fefa3800p-1, ln2_low = 0x1.ef35793c76730p-45;
  static constexpr double log2e_rest = 0.4426950408889634, log2e = 1.4426950408889634;
  static constexpr double log10e_rest = -0.06570551809674817, log10e = 0.4342944819032518;
  static constexpr double log10_2_high = 0.30102999566383914, log10_2_low = 1.42050232272661e-13;
};

inline constexpr float log_coefficients[] = {3.333345e-01f,  -2.500011e-01f,  1.9990848e-01f, -1.6646878e-01f,
                                             1.4477631e-01f, -1.3163942e-01f, 1.0472555e-01f, -4.515222e-02f};

// log(1 + f) - f
FOURFOLD_FN Floats log_tail(const Floats& f) {
  return at::vec::fmadd(horner(f, log_coefficients), f, Floats(-0.5f)) * (f * f);
}

FOURFOLD_FN Doubles log_tail(const Doubles& f) {
  static constexpr double c[] = {0.6666666666666735,  0.3999999999940935,  0.28571428743684396, 0.2222219842943567,
                                 0.18183572317619712, 0.15313833520883707, 0.1479824059380184};
  const Doubles s = f / (f + Doubles(2.0)), square = s * s;
  return s * at::vec::fmadd(horner(square, c), square, f.neg());
}

template <typename S>
FOURFOLD_FN Vectorized<S> log_of_split(const LogSplit<S>& s, const Vectorized<S>& tail) {
  using C = LogConstants<S>;
  const Vectorized<S> low = at::vec::fmadd(s.e, Vectorized<S>(C::ln2_low), tail);
  return at::vec::fmadd(s.e, Vectorized<S>(C::ln2_high), s.f + low);
}

// e from the bits of 2^e minus those of 1.
FOURFOLD_FN Floats exponent_of_bits(const Ints& shift) {
  return at::vec::convert_to_fp_of_same_size<float>(shift >> Ints(23));
}
FOURFOLD_FN Doubles exponent_of_bits(const Longs& shift) {
  const Longs biased = right_by<52>(shift + bits_of(Doubles(1.0)));
  return float_of(biased | bits_of(Doubles(0x1p52))) - Doubles(0x1p52 + 1023);
}

// The bits of 2^e minus those of 1, for a normal number x = 2^e (1 + f).
template <typename S>
FOURFOLD_FN auto exponent_bits_of(const Vectorized<S>& x) {
  using Bits = typename ExpConstants<S>::Bits;
  return (bits_of(x) - bits_of(Vectorized<S>(LogConstants<S>::least))) &
         Vectorized<Bits>(static_cast<Bits>(LogConstants<S>::exponent_bits));
}

// For normal numbers.
template <typename S>
FOURFOLD_FN LogSplit<S> log_split(const Vectorized<S>& x) {
  const auto shift = exponent_bits_of(x);
  return {exponent_of_bits(shift), float_of(bits_of(x) - shift) - Vectorized<S>(S(1))};
}

// finish(log_split(x)) for every x. finish multiplies e only by positive numbers, so infinities of e never cancel to
// NaN.
template <typename S, typename F>
FOURFOLD_FN Vectorized<S> logarithm(const Vectorized<S>& x, const F& finish) {
#if defined(CPU_CAPABILITY_AVX512)
  if constexpr (std::is_same_v<S, float>) {
    // These instructions handle all special cases: 0 has exponent -inf, infinity +inf, and negative numbers become NaN.
    const Floats m = _mm512_getmant_ps(x, _MM_MANT_NORM_p75_1p5, _MM_MANT_SIGN_nan);
    const Floats e = _mm512_sub_ps(_mm512_getexp_ps(x), _mm512_getexp_ps(m));
    return finish(LogSplit<S>{e, m - Floats(1.0f)});
  }
#endif
  using V = Vectorized<S>;
  using C = LogConstants<S>;
  const V result = finish(log_split(x)), least(least_normal<S>);
  if (all(at_most(least, x) & less(x, V(infinity)))) [[likely]] return result;
  const auto subnormal = less(x, least);
  const LogSplit<S> s = log_split(choose(subnormal, x * V(C::subnormal_scale), x));
  const V positive = finish(LogSplit<S>{s.e - choose(subnormal, V(C::subnormal_exponent), V(S(0))), s.f});
  const V others = choose(equal(x, V(S(0))), V(-infinity), V(not_a_number));
  const V finite = choose(less(V(S(0)), x), positive, others);
  return choose(equal(x, V(infinity)), x, finite);
}

template <typename S>
FOURFOLD_FN Vectorized<S> log(const Vectorized<S>& x) {
  if constexpr (by_library<S>) {
    return by_lane([](S v) { return std::log(v); }, x);
  } else {
    return logarithm(x, [](const LogSplit<S>& s) { return log_of_split(s, log_tail(s.f)); });
  }
}

// In log2 and log10 the factor of f is a power of two, whose product is exact, plus a rest. The exponent's term is
// added to that product first, which is exact if they cancel.
template <typename S>
FOURFOLD_FN Vectorized<S> log2(const Vectorized<S>& x) {
  if constexpr (by_library<S>) {
    return by_lane([](S v) { return std::log2(v); }, x);
  } else {
    return logarithm(x, [](const LogSplit<S>& s) {
      using V = Vectorized<S>;
      using C = LogConstants<S>;
      const V low = at::vec::fmadd(s.f, V(C::log2e_rest), log_tail(s.f) * V(C::log2e));
      return (s.e + s.f) + low;
    });
  }
}

template <typename S>
FOURFOLD_FN Vectorized<S> log10(const Vectorized<S>& x) {
  if constexpr (by_library<S>) {
    return by_lane([](S v) { return std::log10(v); }, x);
  } else {
    return logarithm(x, [](const LogSplit<S>& s) {
      using V = Vectorized<S>;
      using C = LogConstants<S>;
      V low = at::vec::fmadd(log_tail(s.f), V(C::log10e), s.e * V(C::log10_2_low));
      low = at::vec::fmadd(s.f, V(C::log10e_rest), low);
      return at::vec::fmadd(s.e, V(C::log10_2_high), s.f * V(S(0.5))) + low;
    });
  }
}

// log(2^e (1 + f)) without the square of f, which would be subnormal for very small f, and without products of
// subnormal f.
FOURFOLD_FN Floats log1p_of_split(const LogSplit<float>& s) {
  const Floats f = without_subnormal(s.f);
  const Floats tail = at::vec::fmadd(horner(f, log_coefficients), f, Floats(-0.5f)) * f;
  const Floats sum = at::vec::fmadd(tail, f, at::vec::fmadd(s.e, Floats(LogConstants<float>::ln2_low), s.f));
  return at::vec::fmadd(s.e, Floats(LogConstants<float>::ln2_high), sum);
}

FOURFOLD_FN Doubles log1p_of_split(const LogSplit<double>& s) {
  const DoubleMask counts = less(Doubles(0x1p-60), s.f.abs());
  return log_of_split(s, log_tail(where_true(counts, s.f)));
}

// log(2^exponent (1 + x)), x > -1. Scaling x and 1 separately keeps the bits of x that 1 + x loses.
template <typename S>
FOURFOLD_FN Vectorized<S> log1p_ordinary(const Vectorized<S>& x, const Vectorized<S>& exponent) {
  using V = Vectorized<S>;
  const auto shift = exponent_bits_of(x + V(S(1)));
  const V four = float_of(bits_of(V(S(4))) - shift);  // 4 / 2^e, a normal number also for the largest e
  const V f = float_of(bits_of(x) - shift) + at::vec::fmadd(four, V(S(0.25)), V(S(-1)));
  return log1p_of_split(LogSplit<S>{exponent_of_bits(shift) + exponent, f});
}

template <typename S>
FOURFOLD_FN Vectorized<S> log1p(const Vectorized<S>& x) {
  if constexpr (by_library<S>) {
    return by_lane([](S v) { return std::log1p(v); }, x);
  } else {
    using V = Vectorized<S>;
    const V minus_one(S(-1)), result = log1p_ordinary(x, V(S(0))) | sign_of(x);
    if (all(less(minus_one, x) & less(x, V(infinity)))) [[likely]] return result;
    const V finite = choose(equal(x, minus_one), V(-infinity), result);
    return choose(less(x, minus_one), V(not_a_number), choose(less(x, V(infinity)), finite, x));
  }
}

}  // namespace fourfold::cpu::FOURFOLD_CPU_LEVEL
