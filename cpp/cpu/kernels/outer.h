// Sums of outer products of rows: c[m][n] (+)= Σ_k a_k[m] b_k[n], with rows a_k and b_k given by pointers. Gradients of
// weights are such sums over the rows of several steps.
#pragma once

#include "cpu/kernels/long_sums.h"
#include "cpu/kernels/panels.h"

namespace fourfold::cpu::FOURFOLD_CPU_LEVEL {

inline constexpr int outer_width = 3;  // the maximum number of vectors of a panel

// Splits `columns` into panels of similar width and calls f(first, width) for each: its first vector, and the number of
// its vectors, a constant.
template <typename S, typename F>
void for_outer_panels(int64_t columns, const F& f) {
  for_panels<outer_width>(0, (columns + lanes<S> - 1) / lanes<S>, f);
}

// The number of factors of `count` packed rows.
template <typename E>
int64_t outer_size(int64_t columns, int64_t count) {
  constexpr int64_t step = lanes<Sum<E>>;
  return (columns + step - 1) / step * step * factors<E>(count);
}

// Packs one vector of factor k: values of row k or, for pairs, of the rows 2k and 2k + 1.
template <typename S>
FOURFOLD_FN void pack_factor(const S* const* rows, int64_t k, int64_t, int64_t column, int64_t n, S* to) {
  load_lanes(rows[k] + column, n).store(to);
}

#if defined(__AVX512BF16__)
FOURFOLD_FN void pack_factor(
    const c10::BFloat16* const* rows, int64_t k, int64_t count, int64_t column, int64_t n, Bfloat16Pair* to) {
  const c10::BFloat16* second = 2 * k + 1 < count ? rows[2 * k + 1] + column : nullptr;
  store_pairs(to, rows[2 * k] + column, second, n);
}
#endif

// Packs the rows b_k into panels. The panel that begins with vector v is at to + v * factors(count) * lanes.
template <typename E>
void pack_outer(const Memory<E>* const* rows, int64_t count, int64_t columns, E* to) {
  using S = Sum<E>;
  const int64_t depth = factors<E>(count);
  for_outer_panels<S>(columns, [&](int64_t first, auto width) {
    E* at = to + first * depth * lanes<S>;
    for (int64_t k = 0; k < depth; ++k) {
      for (int j = 0; j < width; ++j, at += lanes<S>) {
        const int64_t column = (first + j) * lanes<S>;
        pack_factor(rows, k, count, column, lanes_left<S>(columns, column), at);
      }
    }
  });
}

// Packs a strip, the values [from, from + units) of the rows a_k, at most one vector: one vector for each factor at
// `to`. Also adds the rows to `sum`.
template <typename E>
void pack_strip(
    const Memory<E>* const* a, int64_t from, int64_t units, int64_t count, E* to, LongSum<Sum<E>>& sum) {
  for (int64_t k = 0; k < factors<E>(count); ++k) pack_factor(a, k, count, from, units, to + k * lanes<Sum<E>>);
  add_rows(sum, count, [&](int64_t row) { return load_lanes(a[row] + from, units); });
}

}  // namespace fourfold::cpu::FOURFOLD_CPU_LEVEL
