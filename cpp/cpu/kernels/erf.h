// erf for a vector. float64 takes the C library's, element by element: it is there to be right.
#pragma once

#include <cmath>

#include "cpu/kernels/math.h"

namespace fourfold::cpu::FOURFOLD_CPU_LEVEL {

// Apart from the other formulas, whose exp is another.
namespace of_erf {

using V = Vectorized<float>;
FOURFOLD_FN V abs(const V& x) { return x.abs(); }
FOURFOLD_FN V exp(const V& x) { return exp_held(x); }
FOURFOLD_FN V fma(const V& a, const V& b, const V& c) { return at::vec::fmadd(a, b, c); }

#include "formulas/erf.h"

}  // namespace of_erf

inline Vectorized<double> erf(const Vectorized<double>& x) {
  alignas(64) double values[Vectorized<double>::size()];
  x.store(values);
  for (double& value : values) value = std::erf(value);
  return Vectorized<double>::loadu(values);
}

FOURFOLD_FN Vectorized<float> erf(const Vectorized<float>& x) { return of_erf::erf_of_float(x); }

}  // namespace fourfold::cpu::FOURFOLD_CPU_LEVEL
