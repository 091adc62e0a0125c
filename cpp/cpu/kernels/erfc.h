// erfc for a vector.
//
// float: 1 - x Q(x²) within ±1/2; beyond, with t = 3 / (|x| + 3), erfc(|x|) = t P(1 - 2 t) exp(-x²), with a correction
// for the rounding error of x². Minimax polynomials (Q by Remez' algorithm, P by linear programming, coefficients
// rounded one by one, relative errors 3.8e-9 and 7.7e-9). Bound in ulp, tested over all floats: 3.5.
//
// double: the same with erf.h's polynomials, and 3/4 instead of 1/2. Bound in ulp, tested over random numbers: 2.8.
#pragma once

#include "cpu/kernels/erf.h"

namespace fourfold::cpu::FOURFOLD_CPU_LEVEL {

FOURFOLD_FN Doubles erfc_of_double(const Doubles& x) {
  const Doubles a = hold(x.abs(), 0.0, 27.3), one(1.0), scale_of(erfc_scale), divisor = a + scale_of;  // erfc(27.3) = 0
  const Doubles t = scale_of / divisor;
  const Doubles rest = at::vec::fmadd(t.neg(), a - (divisor - scale_of), at::vec::fmadd(t.neg(), divisor, scale_of));
  const Doubles lost = rest * (t * Doubles(1 / erfc_scale));
  const Doubles u = at::vec::fmadd(lost, Doubles(-2.0), at::vec::fmadd(t, Doubles(-2.0), one));
  const Doubles first(erfc_first), others = in_pairs(u, erfc_others);
  const Doubles p = at::vec::fmadd(others, u, first), p_low = at::vec::fmadd(others, u, first - p);
  const Doubles square = a * a;
  const LongReduced reduced = plus(exp_reduced(square.neg()), at::vec::fmadd(a, a, square.neg()).neg());
  const DoubleMask below = less(Doubles(26.543258454250978), a);  // where erfc is less than least_normal
  const Doubles product = p * t, exact = at::vec::fmadd(p, t, product.neg());
  const Doubles product_low = at::vec::fmadd(p, lost, at::vec::fmadd(p_low, t, exact));
  const Doubles power = product + at::vec::fmadd(product, expm1_near(reduced), product_low);
  Doubles above = scale(power, reduced.shifted);
  if (any(below)) [[unlikely]] above = scale_gradually(power, reduced.shifted, below);
  const Doubles far = choose(less(x, Doubles(0.0)), Doubles(2.0) - above, above);
  const Doubles near = at::vec::fmadd(erf_slope(x * x) + one, x.neg(), one);
  return choose(at_most(Doubles(0.75), a), far, near);
}

template <typename S>
FOURFOLD_FN Vectorized<S> erfc(const Vectorized<S>& x) {
  if constexpr (by_library<S>) {
    return by_lane([](S v) { return v > S(28) ? 0 : std::erfc(v); }, x);
  } else if constexpr (std::is_same_v<S, double>) {
    return erfc_of_double(x);
  } else {
    static constexpr float c[] = {3.580023e-01f,  -2.9446483e-01f, 1.9674261e-01f, -1.0348872e-01f,  3.984464e-02f,
                                  -8.94591e-03f, -4.1414186e-04f, 1.0235243e-03f, -1.5562591e-04f, -1.042729e-04f};
    static constexpr float of_erf[] = {1.1283791e+00f, -3.7612316e-01f, 1.12787835e-01f, -2.6547778e-02f,
                                       4.3534455e-03f};
    const Floats a = hold(x.abs(), 0.0f, 10.5f);  // erfc(10.5) is zero
    // P depends on t so strongly that the rounding error of t is corrected.
    const Floats three(3.0f), divisor = a + three;
    const Floats t = three / divisor;
    const Floats rest = at::vec::fmadd(t.neg(), a - (divisor - three), at::vec::fmadd(t.neg(), divisor, three));
    const Floats lost = rest * (t * Floats(1.0f / 3));
    const Floats u = at::vec::fmadd(lost, Floats(-2.0f), at::vec::fmadd(t, Floats(-2.0f), Floats(1.0f)));
    const Floats product = horner(u, c) * (t + lost);
    const Floats square = a * a;
    const auto [shifted, r] = exp_reduced(square.neg());
    const Floats p = expm1_near(r - at::vec::fmadd(a, a, square.neg()));
    const Mask below = less(Floats(9.194548f), a);
    const Floats above = scale_gradually(at::vec::fmadd(product, p, product), exponent_of(shifted), below);
    const Floats far = choose(less(x, Floats(0.0f)), Floats(2.0f) - above, above);
    const Floats near = at::vec::fmadd(horner(square, of_erf), x.neg(), Floats(1.0f));
    return choose(less(a, Floats(0.5f)), near, far);
  }
}

}  // namespace fourfold::cpu::FOURFOLD_CPU_LEVEL
