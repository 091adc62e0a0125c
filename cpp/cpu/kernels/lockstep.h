// Several vectors in lockstep: each operation is applied to all of them before the next one. A cell is a chain of
// dependent operations, and a CPU overlaps several chains if their instructions are interleaved.
#pragma once

#include "cpu/kernels/math.h"

namespace fourfold::cpu::FOURFOLD_CPU_LEVEL {

template <typename V, int n>
struct Lockstep {
  V at[n];

  Lockstep() = default;
  FOURFOLD_FN explicit Lockstep(typename V::value_type value) {
    for (int i = 0; i < n; ++i) at[i] = V(value);
  }
};

// Applies f to the vectors at each index.
template <typename V, int n, typename F, typename... More>
FOURFOLD_FN Lockstep<V, n> each(const F& f, const Lockstep<V, n>& first, const More&... more) {
  Lockstep<V, n> result;
#pragma GCC unroll 4
  for (int i = 0; i < n; ++i) result.at[i] = f(first.at[i], more.at[i]...);
  return result;
}

template <typename V, int n>
FOURFOLD_FN Lockstep<V, n> operator+(const Lockstep<V, n>& a, const Lockstep<V, n>& b) {
  return each([](const V& x, const V& y) { return x + y; }, a, b);
}

template <typename V, int n>
FOURFOLD_FN Lockstep<V, n> operator-(const Lockstep<V, n>& a, const Lockstep<V, n>& b) {
  return each([](const V& x, const V& y) { return x - y; }, a, b);
}

template <typename V, int n>
FOURFOLD_FN Lockstep<V, n> operator*(const Lockstep<V, n>& a, const Lockstep<V, n>& b) {
  return each([](const V& x, const V& y) { return x * y; }, a, b);
}

template <typename V, int n>
FOURFOLD_FN Lockstep<V, n> operator>=(const Lockstep<V, n>& a, const Lockstep<V, n>& b) {
  return each([](const V& x, const V& y) { return x >= y; }, a, b);
}

template <typename V, int n>
FOURFOLD_FN Lockstep<V, n> select(const Lockstep<V, n>& mask, const Lockstep<V, n>& yes, const Lockstep<V, n>& no) {
  return each([](const V& m, const V& x, const V& y) { return select(m, x, y); }, mask, yes, no);
}

template <typename V, int n>
FOURFOLD_FN Lockstep<V, n> sigmoid(const Lockstep<V, n>& x) {
  return each([](const V& v) { return sigmoid(v); }, x);
}

template <typename V, int n>
FOURFOLD_FN Lockstep<V, n> tanh(const Lockstep<V, n>& x) {
  return each([](const V& v) { return tanh(v); }, x);
}

template <typename V, int n>
FOURFOLD_FN Lockstep<V, n> expm1(const Lockstep<V, n>& x) {
  return each([](const V& v) { return expm1(v); }, x);
}

}  // namespace fourfold::cpu::FOURFOLD_CPU_LEVEL
