// Sums of outer products of rows: c[m][n] (+)= Σ_k a_k[m] b_k[n], with rows a_k and b_k given by pointers. This is what
// a weight's gradient is, of the rows of some steps.
#pragma once

#include "cpu/panels.h"

namespace fourfold::cpu::FOURFOLD_CPU_LEVEL {

inline constexpr int outer_width = 3;  // the most vectors of a panel

// Cuts `columns` into panels of about the same width and calls f(first, width) for each: which vector it begins with,
// and how many it has, a constant.
template <typename S, typename F>
void for_outer_panels(int64_t columns, const F& f) {
  for_panels<outer_width>(0, (columns + lanes<S> - 1) / lanes<S>, f);
}

// How many values `count` packed rows take.
template <typename S>
int64_t outer_size(int64_t columns, int64_t count) {
  return (columns + lanes<S> - 1) / lanes<S> * lanes<S> * count;
}

// The rows b_k as panels; one that begins with vector v lies at to + v * count * lanes.
template <typename S>
void pack_outer(const S* const* rows, int64_t count, int64_t columns, S* to) {
  for_outer_panels<S>(columns, [&](int64_t first, auto width) {
    S* at = to + first * count * lanes<S>;
    for (int64_t k = 0; k < count; ++k) {
      for (int j = 0; j < width; ++j, at += lanes<S>) {
        const int64_t column = (first + j) * lanes<S>;
        load_lanes(rows[k] + column, lanes_left<S>(columns, column)).store(at);
      }
    }
  });
}

// A strip is the values [from, from + units) of the rows a_k, at most a vector each, side by side: `count` vectors at
// `to`. Returns `sum` with all of them added.
template <typename S>
Vectorized<S> pack_strip(const S* const* a, int64_t from, int64_t units, int64_t count, S* to, Vectorized<S> sum) {
  for (int64_t k = 0; k < count; ++k) {
    const auto v = load_lanes(a[k] + from, units);
    v.store(to + k * lanes<S>);
    sum = sum + v;
  }
  return sum;
}

// c (units, columns) of a strip of a, b packed; adds to c unless `begin`.
template <typename S>
void add_outer(
    const S* strip, int64_t units, const S* b, int64_t count, int64_t columns, S* c, int64_t ldc, bool begin) {
  for_outer_panels<S>(columns, [&](int64_t first_vector, auto width) {
    const S* panel = b + first_vector * count * lanes<S>;
    for_row_tiles<width>(units, [&](int64_t first, auto rows) {
      Tile<S, rows, width> tile;
      const S* row[rows];
      for (int r = 0; r < rows; ++r) {
        row[r] = strip + first + r;
        for (int j = 0; j < width; ++j) {
          const int64_t column = (first_vector + j) * lanes<S>;
          tile.at[r][j] = begin ? Vectorized<S>(S(0))
                                : load_lanes(c + (first + r) * ldc + column, lanes_left<S>(columns, column));
        }
      }
      multiply<rows, 1, width>(tile, row, lanes<S>, panel, 0, count);
      for (int r = 0; r < rows; ++r) {
        for (int j = 0; j < width; ++j) {
          const int64_t column = (first_vector + j) * lanes<S>;
          store_lanes(c + (first + r) * ldc + column, tile.at[r][j], lanes_left<S>(columns, column));
        }
      }
    });
  });
}

}  // namespace fourfold::cpu::FOURFOLD_CPU_LEVEL
