// erf for a vector.
//
// double: x + x W(x²) within ±1, beyond 1 - erfc(|x|); erfc(a) = t P(1 - 2 t) exp(-a²) with t = 3.5 / (a + 3.5). Minimax
// polynomials (Remez' algorithm, coefficients rounded one by one, relative errors of erf and erfc 1.9e-17 and 2.1e-17).
// Bound in ulp, tested over random numbers: 1.7.
#pragma once

#include "cpu/kernels/exponential.h"

namespace fourfold::cpu::FOURFOLD_CPU_LEVEL {

// A separate namespace, because other formulas use another exp.
namespace of_erf {

using V = Vectorized<float>;
FOURFOLD_FN V abs(const V& x) { return x.abs(); }
FOURFOLD_FN V exp(const V& x) { return exp_held(x); }
FOURFOLD_FN V fma(const V& a, const V& b, const V& c) { return at::vec::fmadd(a, b, c); }

#include "formulas/erf.h"

}  // namespace of_erf

// erf(x) / x - 1 for x within ±1.
FOURFOLD_FN Doubles erf_slope(const Doubles& square) {
  static constexpr double c[] = {
      0.12837916709551256,    -0.37612638903183343,   0.11283791670936945,   -0.02686617064195715,
      0.005223977596709642,   -0.0008548325483146407, 0.00012055280416682844, -1.4924463440580125e-05,
      1.6444112143040625e-06, -1.6183583240805195e-07, 1.3614320742548197e-08, -7.602004355066681e-10};
  return in_two_chains(square, c);
}

inline constexpr double erfc_scale = 3.5;

// P's coefficients, for a = |x| >= 1/2.
inline constexpr double erfc_first = 0.3105873112177886;
inline constexpr double erfc_others[] = {
    -0.26794277844774633, 0.19831818475275423, -0.12435886477625106, 0.06449674904220347,
    -0.02637677332539526, 0.007576748535546826, -0.0009077286669306189, -0.00037295845869079656,
    0.000204151882486709, -1.2017928118285353e-05, -2.136469571127164e-05, 5.328449708065829e-06,
    2.0689867941023743e-06, -9.708653926184039e-07, -2.2555268091869494e-07, 1.5989858146457135e-07,
    3.011629597808046e-08, -2.6048626292345455e-08, -3.6043813276717768e-09, 3.364576124345702e-09};

FOURFOLD_FN Doubles erf_of_double(const Doubles& x) {
  const Doubles near = at::vec::fmadd(erf_slope(x * x), x, x);
  const Doubles a = hold(x.abs(), 1.0, 6.0), one(1.0);  // erf of 6 is 1
  const Doubles t = Doubles(erfc_scale) / (a + Doubles(erfc_scale));
  const LongReduced reduced = exp_reduced((a * a).neg());
  const Doubles power = scale(exp_near(reduced), reduced.shifted);
  const Doubles u = at::vec::fmadd(t, Doubles(-2.0), one);
  const Doubles p = at::vec::fmadd(in_two_chains(u, erfc_others), u, Doubles(erfc_first));
  const Doubles far = at::vec::fmadd((p * t).neg(), power, one);
  return choose(at_most(one, x.abs()), far | sign_of(x), near);
}

FOURFOLD_FN Vectorized<double> erf(const Vectorized<double>& x) {
  if constexpr (by_library<double>) {
    return by_lane([](double v) { return std::erf(v); }, x);
  } else {
    return erf_of_double(x);
  }
}

FOURFOLD_FN Vectorized<float> erf(const Vectorized<float>& x) { return of_erf::erf_of_float(x); }

}  // namespace fourfold::cpu::FOURFOLD_CPU_LEVEL
