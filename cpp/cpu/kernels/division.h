// Floating-point remainders of vectors, and integer quotients for loops that the compiler vectorises.
#pragma once

#include "cpu/kernels/lanes.h"

namespace fourfold::cpu::FOURFOLD_CPU_LEVEL {

template <typename S>
__attribute__((noinline, cold)) inline Vectorized<S> fmod_by_lane(const Vectorized<S>& a, const Vectorized<S>& b) {
  return by_lane([](S v, S w) { return std::fmod(v, w); }, a, b);
}

// C's fmod, which is exact. If S represents all integers up to the quotient, the rounded and truncated quotient is
// correct or one too large; in both cases the remainder is representable in S, and a fused multiply-add computes it
// exactly. Lanes with larger quotients, and those without a quotient, use the C library.
template <typename S>
FOURFOLD_FN Vectorized<S> exact_fmod(const Vectorized<S>& a, const Vectorized<S>& b) {
  if constexpr (by_library<S>) {
    return fmod_by_lane(a, b);
  } else {
    using V = Vectorized<S>;
    const V x = a.abs(), y = b.abs(), quotient = (x / y).trunc();
    const V left = at::vec::fmadd(quotient.neg(), y, x);
    const V rest = choose(less(left, V(S(0))), left + y, left);
    const V result = choose(less(x, y), x, rest) | sign_of(a);
    const auto is_exact = less(quotient, V(S(1) / std::numeric_limits<S>::epsilon()));
    if (all(is_exact)) [[likely]] return result;
    return choose(is_exact, result, fmod_by_lane(a, b));
  }
}

// For int32 the quotient in double is close enough to the exact one that truncation gives the same result. For the
// divisors 0 and -1 the quotients are 0 and -a (wrapping around).
struct Division {
  int32_t quotient, left;
};

FOURFOLD_FN Division divided(int32_t a, int32_t b) {
  const bool special = b == 0 || b == -1;
  const int32_t quotient = static_cast<int32_t>(static_cast<double>(a) / static_cast<double>(special ? 1 : b));
  const int32_t opposite = static_cast<int32_t>(0u - static_cast<uint32_t>(a));
  return {b == 0 ? 0 : b == -1 ? opposite : quotient, special ? 0 : a - quotient * b};
}

// Whether floor division differs from truncation: the quotient is one less, and the remainder gets the divisor's sign.
FOURFOLD_FN bool crosses_zero(int32_t left, int32_t b) { return left != 0 && (left < 0) != (b < 0); }

}  // namespace fourfold::cpu::FOURFOLD_CPU_LEVEL
