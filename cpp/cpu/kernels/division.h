// Floating-point remainders of vectors.
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

}  // namespace fourfold::cpu::FOURFOLD_CPU_LEVEL
