// The floating-point operations of pointwise programs by name, for vectors: Of<Operation::exp>::of(a).
#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "cpu/kernels/division.h"
#include "cpu/kernels/erf.h"
#include "cpu/kernels/erfc.h"
#include "cpu/kernels/exponential.h"
#include "cpu/kernels/hyperbolic.h"
#include "cpu/kernels/inverse.h"
#include "cpu/kernels/logarithm.h"
#include "cpu/kernels/power.h"
#include "cpu/kernels/trigonometry.h"
#include "program/operations.h"

namespace fourfold::cpu::FOURFOLD_CPU_LEVEL {

using program::Operation;
using program::Rule;
using program::Type;

// The functions that formulas/pointwise.h needs, and the operations that it doesn't define. A separate namespace avoids
// ambiguities with at::vec's functions, which calls with vectors find by argument-dependent lookup.
namespace op {

using FOURFOLD_CPU_LEVEL::select;

template <typename T>
FOURFOLD_FN Vectorized<T> abs(const Vectorized<T>& x) { return x.abs(); }
template <typename T>
FOURFOLD_FN Vectorized<T> sqrt(const Vectorized<T>& x) { return x.sqrt(); }
template <typename T>
FOURFOLD_FN Vectorized<T> floor(const Vectorized<T>& x) { return x.floor(); }
template <typename T>
FOURFOLD_FN Vectorized<T> ceil(const Vectorized<T>& x) { return x.ceil(); }
template <typename T>
FOURFOLD_FN Vectorized<T> trunc(const Vectorized<T>& x) { return x.trunc(); }
template <typename T>
FOURFOLD_FN Vectorized<T> round(const Vectorized<T>& x) { return x.round(); }  // to even
template <typename T>
FOURFOLD_FN Vectorized<T> fmod(const Vectorized<T>& a, const Vectorized<T>& b) {
  return exact_fmod(a, b);
}
template <typename T>
FOURFOLD_FN Vectorized<T> copysign(const Vectorized<T>& a, const Vectorized<T>& b) {
  const Vectorized<T> sign(T(-0.0));
  return at::vec::operator|(a.abs(), at::vec::operator&(b, sign));
}

template <typename T>
FOURFOLD_FN Vectorized<T> exp(const Vectorized<T>& x) { return exp_exact(x); }
template <typename T>
FOURFOLD_FN Vectorized<T> expm1(const Vectorized<T>& x) { return expm1_exact(x); }
template <typename T>
FOURFOLD_FN Vectorized<T> sigmoid(const Vectorized<T>& x) { return sigmoid_exact(x); }
template <typename T>
FOURFOLD_FN Vectorized<T> tanh(const Vectorized<T>& x) { return tanh_exact(x); }
using FOURFOLD_CPU_LEVEL::acos;
using FOURFOLD_CPU_LEVEL::acosh;
using FOURFOLD_CPU_LEVEL::asin;
using FOURFOLD_CPU_LEVEL::asinh;
using FOURFOLD_CPU_LEVEL::atan;
using FOURFOLD_CPU_LEVEL::atan2;
using FOURFOLD_CPU_LEVEL::atanh;
using FOURFOLD_CPU_LEVEL::cos;
using FOURFOLD_CPU_LEVEL::cosh;
using FOURFOLD_CPU_LEVEL::erf;
using FOURFOLD_CPU_LEVEL::erfc;
using FOURFOLD_CPU_LEVEL::exp2;
using FOURFOLD_CPU_LEVEL::log;
using FOURFOLD_CPU_LEVEL::log10;
using FOURFOLD_CPU_LEVEL::log1p;
using FOURFOLD_CPU_LEVEL::log2;
using FOURFOLD_CPU_LEVEL::pow;
using FOURFOLD_CPU_LEVEL::sin;
using FOURFOLD_CPU_LEVEL::sinh;
using FOURFOLD_CPU_LEVEL::tan;

#include "formulas/pointwise.h"

}  // namespace op

template <Operation>
struct Of;

#define FOURFOLD_OF(name, operands, rule, cost)                            \
  template <>                                                              \
  struct Of<Operation::name> {                                             \
    template <typename... T>                                               \
    static FOURFOLD_FN auto of(T... v) { return op::name(v...); }          \
  };
FOURFOLD_FLOATING(FOURFOLD_OF)
#undef FOURFOLD_OF

// Calls f.template operator()<op>() for a floating-point operation; returns null for others.
template <typename Result, typename F>
Result* visit_operation(Operation op, const F& f) {
  switch (op) {
#define FOURFOLD_CASE(name, operands, rule, cost) \
  case Operation::name: return f.template operator()<Operation::name>();
    FOURFOLD_FLOATING(FOURFOLD_CASE)
#undef FOURFOLD_CASE
    default: return nullptr;
  }
}

}  // namespace fourfold::cpu::FOURFOLD_CPU_LEVEL
