// A recurrent layer's weights as the backward multiplies gate gradients with them: packed for the call, or where torch keeps
// them. Both give the products of rows of gate gradients, slot by slot, with blocks of a vector of columns each.
#pragma once

#include "cpu/recurrent.h"
#include "cpu/unpacked.h"

namespace fourfold::cpu::FOURFOLD_CPU_LEVEL {

// Which columns: those of W_hh or of W_ih. gate_of(k): whose weights the k-th group of hidden_size rows are.
struct ColumnsOf {
  const void* weights;
  int64_t leading_dim;
  int64_t columns;
  int64_t hidden_size;
  int64_t gates;
  int (*gate_of)(int k);
};

// Blocks of columns, each a panel of one vector whose depth is the gates' units, slot by slot.
template <typename E>
struct PackedColumns {
  using M = Memory<E>;
  using S = Sum<E>;

  ColumnsOf of;
  E* data = nullptr;

  explicit PackedColumns(const ColumnsOf& of) : of(of) {}

  int64_t blocks() const { return divide_up(of.columns, lanes<S>); }
  int64_t depth() const { return of.gates * of.hidden_size; }
  int64_t panel_size() const { return factors<E>(depth()) * lanes<S>; }
  int64_t size() const { return blocks() * panel_size(); }
  int64_t room() const { return 0; }  // what a thread needs beside them
  E* panel(int64_t block) const { return data + block * panel_size(); }

  void pack(int64_t begin, int64_t end) const {
    for (int64_t block = begin; block < end; ++block) {
      const int64_t count = lanes_left<S>(of.columns, block * lanes<S>);
      const M* from = static_cast<const M*>(of.weights) + block * lanes<S>;
      for (int k = 0; k < of.gates; ++k) {
        pack_columns(from + of.gate_of(k) * of.hidden_size * of.leading_dim, of.leading_dim, of.hidden_size, count,
                     panel(block) + k * factors<E>(of.hidden_size) * lanes<S>, lanes<S>);
      }
    }
  }

  // Rows a times blocks [begin, end); calls done(row, block, vector).
  template <typename F>
  void multiply_rows(const E* const* a, int64_t count, int64_t begin, int64_t end, S*, const F& done) const {
    for_row_tiles<1>(count, [&](int64_t from, auto rows) {
      for_panels<panels_at_once<rows, 1>>(begin, end, [&](int64_t block, auto panels) {
        Tile<S, rows, panels> tile;
        tile.clear();
        multiply<rows, panels, 1>(tile, a + from, 1, panel(block), panel_size(), factors<E>(depth()));
        for (int r = 0; r < rows; ++r) {
          for (int p = 0; p < panels; ++p) done(from + r, block + p, tile.at[r][p]);
        }
      });
    });
  }
};

// As torch lays them out, read a few rows of weights at a time from end to end: down the columns, each next value would
// lie on another page.
template <typename E>
struct UnpackedColumns {
  using S = Sum<E>;
  static_assert(std::is_same_v<E, S>);
  static constexpr int tile_rows = 4;
  static constexpr int64_t strip = 8;

  ColumnsOf of;
  E* data = nullptr;

  explicit UnpackedColumns(const ColumnsOf& of) : of(of) {}

  int64_t blocks() const { return divide_up(of.columns, lanes<S>); }
  int64_t size() const { return 0; }
  int64_t room() const { return tile_rows * blocks() * lanes<S>; }
  void pack(int64_t, int64_t) const {}

  template <typename F>
  void multiply_rows(const E* const* a, int64_t count, int64_t begin, int64_t end, S* sums, const F& done) const {
    for_tiles<tile_rows>(count, [&](int64_t from, auto rows) {
      const auto sum = [&](int r, int64_t block) { return sums + (r * (end - begin) + block - begin) * lanes<S>; };
      for (int64_t at = 0; at < rows * (end - begin); ++at) Vectorized<S>(S(0)).store(sums + at * lanes<S>);
      for (int k = 0; k < of.gates; ++k) {
        for (int64_t unit = 0; unit < of.hidden_size; unit += strip) {
          add_strip<rows>(a + from, k, unit, begin, end, sum);
        }
      }
      for (int r = 0; r < rows; ++r) {
        for (int64_t block = begin; block < end; ++block) done(from + r, block, Vectorized<S>::loadu(sum(r, block)));
      }
    });
  }

 private:
  template <int rows, typename F>
  void add_strip(const E* const* a, int k, int64_t unit, int64_t begin, int64_t end, const F& sum) const {
    const E* factors[rows];
    for (int r = 0; r < rows; ++r) factors[r] = a[r] + k * of.hidden_size + unit;
    const E* weights =
        static_cast<const E*>(of.weights) + (of.gate_of(k) * of.hidden_size + unit) * of.leading_dim;
    for_panels<panels_at_once<rows, 1>>(begin, end, [&](int64_t block, auto panels) {
      Tile<S, rows, panels> tile;
      for (int r = 0; r < rows; ++r) {
        for (int p = 0; p < panels; ++p) tile.at[r][p] = Vectorized<S>::loadu(sum(r, block + p));
      }
      multiply_in_place<rows, panels>(
          tile, factors, weights + block * lanes<S>, of.leading_dim, least(strip, of.hidden_size - unit),
          lanes_left<S>(of.columns, (block + panels - 1) * lanes<S>));
      for (int r = 0; r < rows; ++r) {
        for (int p = 0; p < panels; ++p) tile.at[r][p].store(sum(r, block + p));
      }
    });
  }
};

}  // namespace fourfold::cpu::FOURFOLD_CPU_LEVEL
