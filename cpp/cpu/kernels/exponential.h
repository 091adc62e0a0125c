// exp, expm1, exp2 and the logistic function for a vector, right for every argument: subnormal results are rounded, not
// flushed, and signed zeros, infinities and NaN are C's. math.h has others for the cells of recurrent layers.
//
// float: math.h's reduction and polynomial; exp2 has a minimax polynomial of its own for 2^r, |r| <= 1/2 (fitted by
// linear programming, coefficients rounded one by one, relative error 3.1e-9). Bounds in ulp, tested over all floats:
// exp_exact 1.1, expm1_exact 1.6, exp2 0.9, sigmoid_exact 2.5.
#pragma once

#include "cpu/kernels/lanes.h"

namespace fourfold::cpu::FOURFOLD_CPU_LEVEL {

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

template <typename S>
FOURFOLD_FN Vectorized<S> exp_exact(const Vectorized<S>& x) {
  if constexpr (by_library<S>) {
    return by_lane([](S v) { return std::exp(v); }, x);
  } else {
    const auto [shifted, r] = exp_reduced(hold(x, ExpConstants<float>::smallest, ExpConstants<float>::largest));
    return scale(polynomial<float>(r) + Floats(1.0f), shifted);
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
    const Floats result = at::vec::fmadd(half, polynomial<float>(r), half - Floats(0.5f)) * Floats(2.0f);
    return choose(less(x.abs(), Floats(0x1p-64f)), x, result);
  }
}

template <typename S>
FOURFOLD_FN Vectorized<S> exp2(const Vectorized<S>& x) {
  if constexpr (by_library<S>) {
    return by_lane([](S v) { return std::exp2(v); }, x);
  } else {
    static constexpr float c[] = {6.931472e-01f,  2.4022648e-01f, 5.5503592e-02f,
                                  9.618505e-03f, 1.3391242e-03f, 1.5327497e-04f};
    const Floats held = hold(x, -151.0f, 129.0f);
    const Floats shifted = shifted_product(held, 1.0f);
    const Floats r = held - whole(shifted);
    return scale(at::vec::fmadd(horner(r, c), r, Floats(1.0f)), shifted);
  }
}

// exp(x) / (1 + exp(x)) below zero, so that it falls as gradually as exp(x).
template <typename S>
FOURFOLD_FN Vectorized<S> sigmoid_exact(const Vectorized<S>& x) {
  if constexpr (by_library<S>) {
    return by_lane([](S v) { return v < 0 ? std::exp(v) / (1 + std::exp(v)) : 1 / (1 + std::exp(-v)); }, x);
  } else {
    const Floats e = exp_exact(x | Floats(-0.0f));
    return choose(less(x, Floats(0.0f)), e, Floats(1.0f)) / (e + Floats(1.0f));
  }
}

}  // namespace fourfold::cpu::FOURFOLD_CPU_LEVEL
