// erfc for a vector.
//
// float: 1 - x Q(x²) within ±1/2; beyond, with t = 3 / (|x| + 3), erfc(|x|) = t P(1 - 2 t) exp(-x²), where what the
// rounding of x² loses is kept. Minimax polynomials (Q by Remez' algorithm, P by linear programming, coefficients
// rounded one by one, relative errors 3.8e-9 and 7.7e-9). Bound in ulp, tested over all floats: 3.5.
#pragma once

#include "cpu/kernels/exponential.h"

namespace fourfold::cpu::FOURFOLD_CPU_LEVEL {

template <typename S>
FOURFOLD_FN Vectorized<S> erfc(const Vectorized<S>& x) {
  if constexpr (by_library<S>) {
    return by_lane([](S v) { return v > S(28) ? 0 : std::erfc(v); }, x);
  } else {
    static constexpr float c[] = {3.580023e-01f,  -2.9446483e-01f, 1.9674261e-01f, -1.0348872e-01f,  3.984464e-02f,
                                  -8.94591e-03f, -4.1414186e-04f, 1.0235243e-03f, -1.5562591e-04f, -1.042729e-04f};
    static constexpr float of_erf[] = {1.1283791e+00f, -3.7612316e-01f, 1.12787835e-01f, -2.6547778e-02f,
                                       4.3534455e-03f};
    const Floats a = hold(x.abs(), 0.0f, 10.5f);  // erfc of it is zero
    // P depends on t so strongly that what the rounding of t loses is put back.
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
