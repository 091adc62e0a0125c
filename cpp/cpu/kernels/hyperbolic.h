// sinh and cosh for a vector; tanh is in math.h.
//
// float: from h = exp(|x|) / 2 as h ± 1 / (4 h); sinh within ±1 by a minimax polynomial (Remez' algorithm, coefficients
// rounded one by one, relative error 3.0e-10). Bounds in ulp, tested over all floats: sinh 1.7, cosh 1.6.
#pragma once

#include "cpu/kernels/exponential.h"

namespace fourfold::cpu::FOURFOLD_CPU_LEVEL {

// exp(|x|) / 2, which is finite for as long as sinh and cosh are.
FOURFOLD_FN Floats half_exp(const Floats& x) {
  const auto [shifted, r] = exp_reduced(hold(x.abs(), 0.0f, 90.0f));
  const Floats half(0.5f);
  return scale(at::vec::fmadd(expm1_near(r), half, half), exponent_of(shifted));
}

// 1 / (4 h), held at what is nothing beside h: of the largest it would be subnormal.
FOURFOLD_FN Floats quarter_by(const Floats& h) { return Floats(0.25f) / lesser(h, 0x1p60f); }

template <typename S>
FOURFOLD_FN Vectorized<S> sinh(const Vectorized<S>& x) {
  if constexpr (by_library<S>) {
    return by_lane([](S v) { return std::sinh(v); }, x);
  } else {
    static constexpr float c[] = {1.6666667e-01f, 8.3333105e-03f, 1.9842896e-04f, 2.7822132e-06f};
    const Floats square = x * x;
    const Floats near = at::vec::fmadd(horner(square, c) * square, x, x);
    const Floats h = half_exp(x);
    const Floats far = (h - quarter_by(h)) | sign_of(x);
    return choose(less(x.abs(), Floats(1.0f)), near, far);
  }
}

template <typename S>
FOURFOLD_FN Vectorized<S> cosh(const Vectorized<S>& x) {
  if constexpr (by_library<S>) {
    return by_lane([](S v) { return std::cosh(v); }, x);
  } else {
    const Floats h = half_exp(x);
    return h + quarter_by(h);
  }
}

}  // namespace fourfold::cpu::FOURFOLD_CPU_LEVEL
