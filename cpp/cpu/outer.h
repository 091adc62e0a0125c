// Sums of outer products of rows: c[m][n] (+)= Σ_k a_k[m] b_k[n], with rows a_k and b_k given by pointers. This is what
// a weight's gradient is, of the rows of some steps.
#pragma once

#include "cpu/panels.h"

namespace fourfold::cpu::FOURFOLD_CPU_LEVEL {

inline constexpr int outer_width = 3;  // vectors of a panel

inline int64_t outer_panels(int64_t columns, int64_t vector) {
  return (columns + outer_width * vector - 1) / (outer_width * vector);
}

// The rows b_k as panels: outer_panels(columns) * count * outer_width * lanes values at `to`.
template <typename S>
void pack_outer(const S* const* rows, int64_t count, int64_t columns, S* to) {
  constexpr int64_t width = outer_width * lanes<S>;
  for (int64_t first = 0; first < columns; first += width, to += count * width) {
    for (int64_t k = 0; k < count; ++k) {
      for (int64_t column = first; column < first + width; column += lanes<S>) {
        const int64_t n = columns - column;
        const auto v = n <= 0 ? Vectorized<S>(S(0)) : load_lanes(rows[k] + column, n < lanes<S> ? n : lanes<S>);
        v.store(to + k * width + column - first);
      }
    }
  }
}

// How many values a strip of `depth` rows of a takes.
template <typename S>
constexpr int64_t strip_size(int64_t depth) {
  return depth * most_rows<outer_width>;
}

// c (m, columns) for the values [a_begin, a_begin + m) of the rows a_k, b packed; adds to c unless `begin`.
template <typename S>
void add_outer(
    const S* const* a, int64_t a_begin, int64_t m, const S* b, int64_t count, int64_t columns, S* c, int64_t ldc,
    bool begin, S* strip) {
  constexpr int64_t width = outer_width * lanes<S>;
  for_row_tiles<outer_width>(m, [&](int64_t first, auto rows) {
    for (int64_t k = 0; k < count; ++k) {
      for (int r = 0; r < rows; ++r) strip[k * rows + r] = a[k][a_begin + first + r];
    }
    const S* row[rows];
    for (int r = 0; r < rows; ++r) row[r] = strip + r;
    const S* panel = b;
    for (int64_t at = 0; at < columns; at += width, panel += count * width) {
      Tile<S, rows, outer_width> tile;
      for (int r = 0; r < rows; ++r) {
        for (int j = 0; j < outer_width; ++j) {
          const int64_t n = columns - at - j * lanes<S>;
          const bool none = begin || n <= 0;
          tile.at[r][j] = none ? Vectorized<S>(S(0))
                               : load_lanes(c + (first + r) * ldc + at + j * lanes<S>, n < lanes<S> ? n : lanes<S>);
        }
      }
      multiply<rows, 1, outer_width>(tile, row, rows, panel, 0, count);
      for (int r = 0; r < rows; ++r) {
        for (int j = 0; j < outer_width; ++j) {
          const int64_t n = columns - at - j * lanes<S>;
          if (n > 0) store_lanes(c + (first + r) * ldc + at + j * lanes<S>, tile.at[r][j], n < lanes<S> ? n : lanes<S>);
        }
      }
    }
  });
}

}  // namespace fourfold::cpu::FOURFOLD_CPU_LEVEL
