// The product of a few rows with a packed matrix, in registers: the innermost loop of everything that multiplies.
//
// A packed matrix is cut into panels of `width` vectors of columns; a panel has, for each k, its columns' values side
// by side. Every element of a product is one chain of multiply-adds along k that begins with its start value, whatever
// the tile's shape, so that results do not depend on how rows and columns are shared out.
#pragma once

#include "cpu/vec.h"

namespace fourfold::cpu::FOURFOLD_CPU_LEVEL {

template <typename S>
inline constexpr int64_t lanes = Vectorized<S>::size();

// Accumulators of a tile: 32 registers with AVX-512 and 16 without hold them beside what is loaded for each k.
inline constexpr int tile_vectors = Vectorized<float>::size() == 16 ? 24 : 12;

// The most rows of a tile whose panels have so many vectors, and how many panels a tile of so many rows takes at once:
// enough chains to hide a multiply-add's latency, not more than the registers hold.
template <int width>
inline constexpr int most_rows = tile_vectors / width < 8 ? tile_vectors / width : 8;
template <int rows, int width>
inline constexpr int panels_at_once =
    tile_vectors / (rows * width) < 1 + 7 / width ? tile_vectors / (rows * width) : 1 + 7 / width;

template <typename S, int rows, int columns>
struct Tile {
  Vectorized<S> at[rows][columns];
};

// tile[r][p * width + j] += Σ_k a[r][k * a_step] panel_p[k][j], where panel_p begins at b + p * panel_size.
template <int rows, int panels, int width, typename S>
FOURFOLD_FN void multiply(
    Tile<S, rows, panels * width>& tile, const S* const* a, int64_t a_step, const S* b, int64_t panel_size,
    int64_t depth) {
  const S* row[rows];
  for (int r = 0; r < rows; ++r) row[r] = a[r];
  for (int64_t k = 0; k < depth; ++k) {
    Vectorized<S> column[panels * width];
    for (int p = 0; p < panels; ++p) {
      for (int j = 0; j < width; ++j) {
        column[p * width + j] = Vectorized<S>::loadu(b + p * panel_size + (k * width + j) * lanes<S>);
      }
    }
    for (int r = 0; r < rows; ++r) {
      const Vectorized<S> x(row[r][k * a_step]);
      for (int j = 0; j < panels * width; ++j) tile.at[r][j] = at::vec::fmadd(x, column[j], tile.at[r][j]);
    }
  }
}

// Calls f(std::integral_constant<int, n>()) for a count from 1 to `most`.
template <int most, typename F>
FOURFOLD_FN void with_count(int64_t n, const F& f) {
  if constexpr (most > 1) {
    if (n < most) return with_count<most - 1>(n, f);
  }
  f(std::integral_constant<int, most>());
}

// Cuts `count` rows into tiles of about the same size and calls f(first, rows) for each, rows a constant.
template <int width, typename F>
void for_row_tiles(int64_t count, const F& f) {
  const int64_t tiles = (count + most_rows<width> - 1) / most_rows<width>;
  for (int64_t tile = 0, first = 0; tile < tiles; ++tile) {
    const int64_t rows = count / tiles + (tile < count % tiles ? 1 : 0);
    with_count<most_rows<width>>(rows, [&](auto constant) { f(first, constant); });
    first += rows;
  }
}

// Cuts the panels [begin, end) into groups of about the same size, `most` at most, and calls f(first, panels) for each,
// panels a constant.
template <int most, typename F>
FOURFOLD_FN void for_panels(int64_t begin, int64_t end, const F& f) {
  const int64_t groups = (end - begin + most - 1) / most;
  for (int64_t group = 0, first = begin; group < groups; ++group) {
    const int64_t panels = (end - begin) / groups + (group < (end - begin) % groups ? 1 : 0);
    with_count<most>(panels, [&](auto constant) { f(first, constant); });
    first += panels;
  }
}

}  // namespace fourfold::cpu::FOURFOLD_CPU_LEVEL
