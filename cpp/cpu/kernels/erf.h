// erf for a vector. float64 takes the C library's, element by element: it is there to be right.
#pragma once

#include <cmath>

#include "cpu/kernels/math.h"

namespace fourfold::cpu::FOURFOLD_CPU_LEVEL {

inline Vectorized<double> erf(const Vectorized<double>& x) {
  alignas(64) double values[Vectorized<double>::size()];
  x.store(values);
  for (double& value : values) value = std::erf(value);
  return Vectorized<double>::loadu(values);
}

// N. Juffa's two minimax polynomials (stackoverflow.com/questions/35148198, BSD licence): erf itself near zero, and the
// logarithm of 1 - erf beyond.
FOURFOLD_FN Vectorized<float> erf(const Vectorized<float>& x) {
  using V = Vectorized<float>;
  const V t = x.abs();
  const V s = x * x;
  const auto chain = [](V r, const V& by, float c) { return at::vec::fmadd(r, by, V(c)); };
  V near = V(-5.96761703e-4f);
  near = chain(near, s, 4.99119423e-3f);
  near = chain(near, s, -2.67681349e-2f);
  near = chain(near, s, 1.12819925e-1f);
  near = chain(near, s, -3.76125336e-1f);
  near = chain(near, s, 1.28379166e-1f);
  near = at::vec::fmadd(near, x, x);
  const V low = chain(V(-3.88396438e-3f), t, 2.42546219e-2f);
  V far = chain(V(-1.72853470e-5f), t, 3.83197126e-4f);
  far = at::vec::fmadd(far, s, low);
  far = chain(far, t, -1.06777877e-1f);
  far = chain(far, t, -6.34846687e-1f);
  far = chain(far, t, -1.28717512e-1f);
  far = at::vec::fmadd(far, t, -t);
  const V sign = x & V(-0.0f);
  return select(t > V(0.927734375f), (V(1) - exp(far)) | sign, near);
}

}  // namespace fourfold::cpu::FOURFOLD_CPU_LEVEL
