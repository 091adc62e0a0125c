// Products of a few rows with a packed matrix, for loops in which a call of the vendor's library a step would cost
// more than the product. One level's code; no std containers, whose weak symbols levels would share.
#pragma once

#include <cstdlib>
#include <new>

#include "cpu/parallel.h"
#include "cpu/vec.h"

namespace fourfold::cpu::FOURFOLD_CPU_LEVEL {

template <typename S>
inline constexpr int64_t lanes = Vectorized<S>::size();

// Rows of a tile: with three vectors a row, the accumulators fill the registers (32 with AVX-512, 16 without).
inline constexpr int tile_rows = Vectorized<float>::size() == 16 ? 8 : 4;

// Memory for a call's own use, aligned for vector loads.
template <typename S>
class Scratch {
 public:
  explicit Scratch(int64_t count)
      : data_(static_cast<S*>(std::aligned_alloc(64, (static_cast<size_t>(count) * sizeof(S) + 63) / 64 * 64 + 64))) {
    if (data_ == nullptr) throw std::bad_alloc();
  }
  ~Scratch() { std::free(data_); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  S* get() const { return data_; }

 private:
  S* data_;
};

// A (depth, columns) matrix in panels of `width` vectors: panel p holds, for each k, its columns' values side by side.
// Where the columns come in groups (the gates of a cell), a panel holds the same few columns of each group, so that one
// tile of the product has all gates of its units.
template <typename S, int width>
class Packed {
 public:
  // Columns in a row: (k, n) is at from[k * k_stride + n * column_stride].
  Packed(const S* from, int64_t depth, int64_t columns, int64_t k_stride, int64_t column_stride)
      : Packed(from, depth, columns, k_stride, column_stride, lanes<S> * column_stride, lanes<S>) {}

  // `width` groups of columns: (k, n) of group g is at from[k * k_stride + g * group_stride + n * column_stride].
  static Packed grouped(
      const S* from, int64_t depth, int64_t columns, int64_t k_stride, int64_t column_stride, int64_t group_stride) {
    return Packed(from, depth, columns, k_stride, column_stride, group_stride, 0);
  }

  int64_t panels() const { return panels_; }
  int64_t depth() const { return depth_; }
  const S* panel(int64_t p) const { return data_.get() + p * panel_size_; }

 private:
  Packed(const S* from, int64_t depth, int64_t columns, int64_t k_stride, int64_t column_stride, int64_t part_stride,
         int64_t columns_per_part)
      : depth_(depth),
        columns_per_panel_(columns_per_part == 0 ? lanes<S> : width * lanes<S>),
        panels_((columns + columns_per_panel_ - 1) / columns_per_panel_),
        panel_size_(depth * width * lanes<S>),
        data_(panels_ * panel_size_) {
    for (int64_t p = 0; p < panels_; ++p) {
      const int64_t first = p * columns_per_panel_;
      for (int part = 0; part < width; ++part) {
        const S* source = from + first * column_stride + part * part_stride;
        S* to = data_.get() + p * panel_size_ + part * lanes<S>;
        const int64_t left = columns - first - part * columns_per_part;
        const int64_t used = left < 0 ? 0 : left < lanes<S> ? left : lanes<S>;
        fill(to, source, used, k_stride, column_stride);
      }
    }
  }

  void fill(S* to, const S* source, int64_t used, int64_t k_stride, int64_t column_stride) const {
    constexpr int64_t row = width * lanes<S>;
    // The inner loop runs along the source's memory, whichever way that lies.
    if (column_stride == 1) {
      for (int64_t k = 0; k < depth_; ++k) {
        for (int64_t lane = 0; lane < used; ++lane) to[k * row + lane] = source[k * k_stride + lane];
      }
    } else {
      for (int64_t lane = 0; lane < used; ++lane) {
        for (int64_t k = 0; k < depth_; ++k) to[k * row + lane] = source[k * k_stride + lane * column_stride];
      }
    }
    for (int64_t lane = used; lane < lanes<S>; ++lane) {
      for (int64_t k = 0; k < depth_; ++k) to[k * row + lane] = S(0);
    }
  }

  int64_t depth_;
  int64_t columns_per_panel_;
  int64_t panels_;
  int64_t panel_size_;
  Scratch<S> data_;
};

template <typename S, int rows, int width>
struct Tile {
  Vectorized<S> at[rows][width];
};

// tile[r][j] = Σ_k a[r * a_row + k * a_k] panel[k][j]
template <typename S, int rows, int width>
Tile<S, rows, width> multiply(const S* a, int64_t a_row, int64_t a_k, const S* panel, int64_t depth) {
  Tile<S, rows, width> tile;
  for (int r = 0; r < rows; ++r) {
    for (int j = 0; j < width; ++j) tile.at[r][j] = Vectorized<S>(S(0));
  }
  for (int64_t k = 0; k < depth; ++k, panel += width * lanes<S>) {
    Vectorized<S> b[width];
    for (int j = 0; j < width; ++j) b[j] = Vectorized<S>::loadu(panel + j * lanes<S>);
    for (int r = 0; r < rows; ++r) {
      const Vectorized<S> x(a[r * a_row + k * a_k]);
      for (int j = 0; j < width; ++j) tile.at[r][j] = at::vec::fmadd(x, b[j], tile.at[r][j]);
    }
  }
  return tile;
}

// Calls done(r, v) for each of `rows` rows of the product with one panel, v its `width` vectors.
template <int width, int most = tile_rows, typename S, typename F>
void multiply_rows(
    const S* a, int64_t a_row, int64_t a_k, int64_t rows, const S* panel, int64_t depth, const F& done, int64_t row = 0) {
  for (; row + most <= rows; row += most) {
    const auto tile = multiply<S, most, width>(a + row * a_row, a_row, a_k, panel, depth);
    for (int r = 0; r < most; ++r) done(row + r, tile.at[r]);
  }
  if constexpr (most > 1) {
    if (row < rows) multiply_rows<width, most / 2>(a, a_row, a_k, rows, panel, depth, done, row);
  }
}

// Calls done(row, column, v, count) for each vector v of the product of `rows` rows with the whole packed matrix.
template <int width, typename S, typename F>
void multiply_all(
    const S* a, int64_t a_row, int64_t a_k, int64_t rows, const Packed<S, width>& b, int64_t columns, const F& done) {
  for (int64_t p = 0; p < b.panels(); ++p) {
    multiply_rows<width>(a, a_row, a_k, rows, b.panel(p), b.depth(), [&](int64_t row, const Vectorized<S>(&v)[width]) {
      for (int j = 0; j < width; ++j) {
        const int64_t column = (p * width + j) * lanes<S>;
        const int64_t left = columns - column;
        if (left > 0) done(row, column, v[j], left < lanes<S> ? left : lanes<S>);
      }
    });
  }
}

template <typename S>
Vectorized<S> load_lanes(const S* from, int64_t count) {
  return count == lanes<S> ? Vectorized<S>::loadu(from) : Vectorized<S>::loadu(from, count);
}

template <typename S>
void store_lanes(S* to, const Vectorized<S>& v, int64_t count) {
  if (count == lanes<S>) {
    v.store(to);
  } else {
    v.store(to, static_cast<int>(count));
  }
}

}  // namespace fourfold::cpu::FOURFOLD_CPU_LEVEL
