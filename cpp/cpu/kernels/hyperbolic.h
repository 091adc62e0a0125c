// sinh and cosh for a vector; tanh is in math.h.
//
// float: from h = exp(|x|) / 2 as h ± 1 / (4 h); sinh within ±1 by a minimax polynomial (Remez' algorithm, coefficients
// rounded one by one, relative error 3.0e-10). Bounds in ulp, tested over all floats: sinh 1.7, cosh 1.6.
//
// double: the same, with a polynomial of relative error 2.5e-19. Bounds in ulp, tested over random numbers: sinh and cosh
// 2.
#pragma once

#include "cpu/kernels/exponential.h"

namespace fourfold::cpu::FOURFOLD_CPU_LEVEL {

// exp(|x|) / 2, which is finite if sinh and cosh are.
FOURFOLD_FN Floats half_exp(const Floats& x) {
  const auto [shifted, r] = exp_reduced(hold(x.abs(), 0.0f, 90.0f));
  const Floats half(0.5f);
  return scale(at::vec::fmadd(expm1_near(r), half, half), exponent_of(shifted));
}

FOURFOLD_FN Doubles half_exp(const Doubles& x) {
  const LongReduced reduced = exp_reduced(hold(x.abs(), 0.0, 711.0));
  const Doubles quarter = scale(exp_near(reduced), reduced.shifted - Doubles(2.0));
  return unless_nan(x, quarter + quarter);  // overflows exactly when it should
}

// 1 / (4 h), with h clamped where the result is negligible compared with h: otherwise it would be subnormal for the
// largest h.
template <typename S>
FOURFOLD_FN Vectorized<S> quarter_by(const Vectorized<S>& h) {
  return Vectorized<S>(S(0.25)) / lesser(h, S(0x1p60));
}

// sinh of x within ±1
FOURFOLD_FN Floats sinh_near(const Floats& x) {
  static constexpr float c[] = {1.6666667e-01f, 8.3333105e-03f, 1.9842896e-04f, 2.7822132e-06f};
  const Floats square = x * x;
  return at::vec::fmadd(horner(square, c) * square, x, x);
}

FOURFOLD_FN Doubles sinh_near(const Doubles& x) {
  static constexpr double c[] = {0.16666666666666669,    0.008333333333332912,   0.0001984126984159341, 2.7557319106710276e-06,
                                 2.5052131020428754e-08, 1.6056655972713012e-10, 7.776750358718134e-13};
  const Doubles square = x * x;
  return at::vec::fmadd(horner(square, c) * square, x, x);
}

template <typename S>
FOURFOLD_FN Vectorized<S> sinh(const Vectorized<S>& x) {
  if constexpr (by_library<S>) {
    return by_lane([](S v) { return std::sinh(v); }, x);
  } else {
    const Vectorized<S> h = half_exp(x);
    const Vectorized<S> far = (h - quarter_by(h)) | sign_of(x);
    return choose(less(x.abs(), Vectorized<S>(S(1))), sinh_near(x), far);
  }
}

template <typename S>
FOURFOLD_FN Vectorized<S> cosh(const Vectorized<S>& x) {
  if constexpr (by_library<S>) {
    return by_lane([](S v) { return std::cosh(v); }, x);
  } else {
    const Vectorized<S> h = half_exp(x);
    return h + quarter_by(h);
  }
}

}  // namespace fourfold::cpu::FOURFOLD_CPU_LEVEL
