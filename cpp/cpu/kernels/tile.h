// The product of a few rows with a packed matrix, in registers: the innermost loop of all products.
//
// A packed matrix consists of panels of `width` vectors of columns; for each k, a panel has its columns' values one
// after the other. Every element of a product is one chain of multiply-adds along k that begins with its start value,
// for any tile shape, so that results do not depend on how rows and columns are split.
#pragma once

#include "cpu/kernels/amx.h"
#include "cpu/kernels/factor.h"

namespace fourfold::cpu::FOURFOLD_CPU_LEVEL {

// The number of a tile's accumulators. They and the values loaded for each k must fit 32 registers with AVX-512, 16
// without. On plain x86-64 a vector takes two registers.
#if defined(CPU_CAPABILITY_DEFAULT) && defined(__x86_64__)
inline constexpr int tile_vectors = 6;
#else
inline constexpr int tile_vectors = Vectorized<float>::size() == 16 ? 24 : 12;
#endif
// How many items of `vectors` vectors fit a tile; at least one.
constexpr int fitting(int vectors) { return vectors < tile_vectors ? tile_vectors / vectors : 1; }

#if defined(__AMX_BF16__)
// AMX has accumulators of 16 rows and 16 columns, four of them besides the operands.
template <int width>
inline constexpr int most_rows = 16;
constexpr int panels_at_once(int, int width) { return 4 / width; }
template <int width>
inline constexpr int most_vectors = 64;
#else
// The maximum number of rows of a tile with panels of `width` vectors, the number of panels of a tile with `rows` rows,
// and the maximum number of vectors of such a tile: enough chains to hide a multiply-add's latency, but no more than
// registers. Six rows and two panels have twelve accumulators and eight loads; eight rows and one panel have eight
// accumulators and nine loads.
template <int width>
inline constexpr int most_rows = width == 1 && tile_vectors == 12 ? 6 : fitting(width) < 8 ? fitting(width) : 8;
constexpr int panels_at_once(int rows, int width) {
  return fitting(rows * width) < 1 + 7 / width ? fitting(rows * width) : 1 + 7 / width;
}
template <int width>
inline constexpr int most_vectors = width < tile_vectors ? tile_vectors : width;
#endif

template <typename S, int rows, int columns>
struct Tile {
  Vectorized<S> at[rows][columns];

  FOURFOLD_FN void clear() {
    for (int r = 0; r < rows; ++r) {
      for (int j = 0; j < columns; ++j) at[r][j] = Vectorized<S>(S(0));
    }
  }
};

// tile[r][p * width + j] += Σ_k a[r][k * a_step] panel_p[k][j], where panel_p begins at b + p * panel_size. Depths,
// steps and sizes count factors.
#if defined(__AMX_BF16__)
template <int rows, int panels, int width>
void multiply(
    Tile<float, rows, panels * width>& tile, const Bfloat16Pair* const* a, int64_t a_step, const Bfloat16Pair* b,
    int64_t panel_size, int64_t depth) {
  multiply_by_amx<panels, width>(rows, &tile.at[0][0], a, a_step, b, panel_size, depth);
}
#else
template <int rows, int panels, int width, typename E>
FOURFOLD_FN void multiply(
    Tile<Sum<E>, rows, panels * width>& tile, const E* const* a, int64_t a_step, const E* b, int64_t panel_size,
    int64_t depth) {
  using F = Factor<E>;
  constexpr int64_t step = lanes<Sum<E>>;
  const E* row[rows];
  for (int r = 0; r < rows; ++r) row[r] = a[r];
  for (int64_t k = 0; k < depth; ++k) {
    typename F::Vector column[panels * width];
    for (int p = 0; p < panels; ++p) {
      for (int j = 0; j < width; ++j) column[p * width + j] = F::load(b + p * panel_size + (k * width + j) * step);
    }
    for (int r = 0; r < rows; ++r) {
      const auto x = F::broadcast(row[r] + k * a_step);
      for (int j = 0; j < panels * width; ++j) tile.at[r][j] = F::add_product(x, column[j], tile.at[r][j]);
    }
  }
}
#endif

// Calls f(std::integral_constant<int, n>()) for a count from 1 to `most`.
template <int most, typename F>
FOURFOLD_FN void with_count(int64_t n, const F& f) {
  if constexpr (most > 1) {
    if (n < most) return with_count<most - 1>(n, f);
  }
  f(std::integral_constant<int, most>());
}

// Splits [begin, end) into groups of similar size, at most `most`, and calls f(first, count) for each.
template <typename F>
FOURFOLD_FN void for_groups(int64_t begin, int64_t end, int64_t most, const F& f) {
  const int64_t groups = (end - begin + most - 1) / most;
  for (int64_t group = 0, first = begin; group < groups; ++group) {
    const int64_t count = (end - begin) / groups + (group < (end - begin) % groups ? 1 : 0);
    f(first, count);
    first += count;
  }
}

// The same for panels; the count is a constant.
template <int most, typename F>
FOURFOLD_FN void for_panels(int64_t begin, int64_t end, const F& f) {
  for_groups(begin, end, most, [&](int64_t first, int64_t count) {
    with_count<most>(count, [&](auto constant) { f(first, constant); });
  });
}

// Splits `count` rows into tiles of similar size and calls f(first, rows) for each; rows is a constant.
template <int most, typename F>
void for_tiles(int64_t count, const F& f) {
  for_panels<most>(0, count, f);
}

// The same for rows that are multiplied with panels of `width` vectors.
template <int width, typename F>
void for_row_tiles(int64_t count, const F& f) {
  for_tiles<most_rows<width>>(count, f);
}

#if !defined(__AMX_BF16__)
// Without AMX there is no tile state.
struct TilesInUse {};
#endif

}  // namespace fourfold::cpu::FOURFOLD_CPU_LEVEL
