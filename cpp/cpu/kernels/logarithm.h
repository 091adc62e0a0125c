// log, log2, log10 and log1p for a vector.
//
// float: x = 2^e (1 + f) with -1/4 <= f < 1/2, log(1 + f) = f - f²/2 + f³ P(f), P a minimax polynomial (fitted by
// linear programming, coefficients rounded one by one, relative error of the whole 4.9e-9). Bounds in ulp, tested over
// all floats: log 1, log2 1.6, log10 1.6, log1p 1.
#pragma once

#include "cpu/kernels/lanes.h"

namespace fourfold::cpu::FOURFOLD_CPU_LEVEL {

struct LogSplit {
  Floats e, f;
};

inline constexpr float log_coefficients[] = {3.333345e-01f,  -2.500011e-01f,  1.9990848e-01f, -1.6646878e-01f,
                                             1.4477631e-01f, -1.3163942e-01f, 1.0472555e-01f, -4.515222e-02f};

// log(1 + f) - f
FOURFOLD_FN Floats log_tail(const Floats& f) {
  return at::vec::fmadd(horner(f, log_coefficients), f, Floats(-0.5f)) * (f * f);
}

FOURFOLD_FN Floats log_of_split(const LogSplit& s) {
  const Floats low = at::vec::fmadd(s.e, Floats(1.42860677e-6f), log_tail(s.f));
  return at::vec::fmadd(s.e, Floats(0.693145751953125f), s.f + low);
}

// Of a normal number.
FOURFOLD_FN LogSplit log_split(const Floats& x) {
  const Ints shift = (bits_of(x) - bits_of(Floats(0.75f))) & Ints(static_cast<int32_t>(0xff800000));
  return {at::vec::convert_to_fp_of_same_size<float>(shift >> Ints(23)),
          float_of(bits_of(x) - shift) - Floats(1.0f)};
}

// finish(log_split(x)) for every x. Its factors of e are positive, so that an infinite e never meets its opposite.
template <typename F>
FOURFOLD_FN Floats logarithm(const Floats& x, const F& finish) {
#if defined(CPU_CAPABILITY_AVX512)
  // These instructions have all special cases: 0 has the exponent -inf, infinity +inf, and numbers below 0 turn to NaN.
  const Floats m = _mm512_getmant_ps(x, _MM_MANT_NORM_p75_1p5, _MM_MANT_SIGN_nan);
  const Floats e = _mm512_sub_ps(_mm512_getexp_ps(x), _mm512_getexp_ps(m));
  return finish(LogSplit{e, m - Floats(1.0f)});
#else
  const Floats result = finish(log_split(x));
  if (all(at_most(Floats(smallest_normal), x) & less(x, Floats(infinity)))) [[likely]] return result;
  const Mask subnormal = less(x, Floats(smallest_normal));
  const LogSplit s = log_split(choose(subnormal, x * Floats(0x1p24f), x));
  const Floats positive = finish(LogSplit{s.e - choose(subnormal, Floats(24.0f), Floats(0.0f)), s.f});
  const Floats others = choose(equal(x, Floats(0.0f)), Floats(-infinity), Floats(not_a_number));
  const Floats finite = choose(less(Floats(0.0f), x), positive, others);
  return choose(equal(x, Floats(infinity)), x, finite);
#endif
}

template <typename S>
FOURFOLD_FN Vectorized<S> log(const Vectorized<S>& x) {
  if constexpr (by_library<S>) {
    return by_lane([](S v) { return std::log(v); }, x);
  } else {
    return logarithm(x, [](const LogSplit& s) { return log_of_split(s); });
  }
}

// In log2 and log10 the factor of f is a power of two, whose product is exact, and a rest. What the exponent
// contributes is added to that product first, which is exact where they cancel.
template <typename S>
FOURFOLD_FN Vectorized<S> log2(const Vectorized<S>& x) {
  if constexpr (by_library<S>) {
    return by_lane([](S v) { return std::log2(v); }, x);
  } else {
    return logarithm(x, [](const LogSplit& s) {
      const Floats low = at::vec::fmadd(s.f, Floats(0.442695041f), log_tail(s.f) * Floats(1.442695041f));
      return (s.e + s.f) + low;
    });
  }
}

template <typename S>
FOURFOLD_FN Vectorized<S> log10(const Vectorized<S>& x) {
  if constexpr (by_library<S>) {
    return by_lane([](S v) { return std::log10(v); }, x);
  } else {
    return logarithm(x, [](const LogSplit& s) {
      Floats low = at::vec::fmadd(log_tail(s.f), Floats(0.4342944819f), s.e * Floats(4.605038981e-6f));
      low = at::vec::fmadd(s.f, Floats(-0.0657055181f), low);
      return at::vec::fmadd(s.e, Floats(0.301025390625f), s.f * Floats(0.5f)) + low;
    });
  }
}

// log(2^e (1 + f)) without the square of f, which of a very small one would be subnormal; nor is a subnormal f multiplied.
FOURFOLD_FN Floats log1p_of_split(const LogSplit& s) {
  const Floats f = without_subnormal(s.f);
  const Floats tail = at::vec::fmadd(horner(f, log_coefficients), f, Floats(-0.5f)) * f;
  const Floats sum = at::vec::fmadd(tail, f, at::vec::fmadd(s.e, Floats(1.42860677e-6f), s.f));
  return at::vec::fmadd(s.e, Floats(0.693145751953125f), sum);
}

// log(2^exponent (1 + x)), x > -1. Scaling x and 1 apart keeps the bits of x that 1 + x loses.
FOURFOLD_FN Floats log1p_ordinary(const Floats& x, const Floats& exponent) {
  const Ints shift = (bits_of(x + Floats(1.0f)) - bits_of(Floats(0.75f))) & Ints(static_cast<int32_t>(0xff800000));
  const Floats four = float_of(bits_of(Floats(4.0f)) - shift);  // 4 / 2^e, a normal number also for the largest e
  const Floats f = float_of(bits_of(x) - shift) + at::vec::fmadd(four, Floats(0.25f), Floats(-1.0f));
  return log1p_of_split({at::vec::convert_to_fp_of_same_size<float>(shift >> Ints(23)) + exponent, f});
}

template <typename S>
FOURFOLD_FN Vectorized<S> log1p(const Vectorized<S>& x) {
  if constexpr (by_library<S>) {
    return by_lane([](S v) { return std::log1p(v); }, x);
  } else {
    const Floats result = log1p_ordinary(x, Floats(0.0f)) | sign_of(x);
    if (all(less(Floats(-1.0f), x) & less(x, Floats(infinity)))) [[likely]] return result;
    const Floats finite = choose(equal(x, Floats(-1.0f)), Floats(-infinity), result);
    return choose(less(x, Floats(-1.0f)), Floats(not_a_number), choose(less(x, Floats(infinity)), finite, x));
  }
}

}  // namespace fourfold::cpu::FOURFOLD_CPU_LEVEL
