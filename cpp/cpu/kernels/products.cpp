#include "cpu/kernels/products.h"

#include "cpu/kernels/recurrent.h"
#include "cpu/kernels/unpacked.h"

namespace fourfold::cpu::FOURFOLD_CPU_LEVEL {

namespace {

// Each tile shape is a separate function: inlined into one, register allocation would fail to keep the tiles in
// registers.
template <int width, int rows, int count, typename E>
__attribute__((noinline)) void packed_tile(const E* const* a, const Panels<E>& panels, const RowSums<Sum<E>>& sums) {
  using S = Sum<E>;
  Tile<S, rows, count * width> tile;
#pragma GCC unroll 16  // otherwise the tile would be kept in memory
  for (int p = 0; p < count; ++p) {
#pragma GCC unroll 4
    for (int j = 0; j < width; ++j) {
      const auto start = panels.start == nullptr ? Vectorized<S>(S(0))
                                                 : Vectorized<S>::loadu(panels.start + p * panels.size + j * lanes<S>);
      for (int r = 0; r < rows; ++r) tile.at[r][p * width + j] = start;
    }
  }
  multiply<rows, count, width>(tile, a, 1, panels.data, panels.size, panels.depth);
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r) {
    S* to = sums.row(r);
#pragma GCC unroll 16
    for (int j = 0; j < count * width; ++j) tile.at[r][j].store(to + j * lanes<S>);
  }
}

template <typename E>
Vectorized<Sum<E>> bias_of(const UnpackedBlock<E>& block, int gate) {
  return load_or_zero(block.bias, gate * block.bias_step, block.units);
}

// Multiplies rows of weights with vectors along the depth; the lanes are summed at the end.
template <int gates, int rows, typename E>
__attribute__((noinline)) void unpacked_tile(
    const E* const* a, const UnpackedBlock<E>& block, Sum<E>* room, const RowSums<Sum<E>>& sums) {
  using S = Sum<E>;
  // Enough sums at once to hide a multiply-add's latency: all gates, or several units if there are many rows.
  constexpr int together = gates * rows <= tile_vectors ? gates : 1;
  constexpr int units_at_once = least(fitting(together * rows), 2);
  for_panels<units_at_once>(0, block.units, [&](int64_t u, auto units) {
    for (int gate = 0; gate < gates; gate += together) {
      Tile<S, together * units, rows> dots;
      dots.clear();
      multiply_rows<together, units, rows, E>(
          dots, block.weights + gate * block.gate_step + u * block.leading_dim, block.gate_step, block.leading_dim, a,
          block.depth);
      for (int t = 0; t < together * units; ++t) {
        for (int r = 0; r < rows; ++r) {
          dots.at[t][r].store(room + ((r * gates + gate + t / units) * lanes<S> + u + t % units) * lanes<S>);
        }
      }
    }
  });
  for (int g = 0; g < gates; ++g) {
    const auto start = bias_of(block, g);
    for (int r = 0; r < rows; ++r) {
      const S* dots = room + (r * gates + g) * lanes<S> * lanes<S>;
      (start + sum_lanes(dots)).store(sums.row(r) + g * lanes<S>);
    }
  }
}

// The maximum number of units of a tile whose lanes are rows. More wouldn't increase throughput and, if the weights'
// leading dimension is a power of two, would cause cache conflicts: all rows map to the same sets.
constexpr int64_t columns_units = 4;

// Calls f(first row, vectors) for pairs of vectors of rows.
template <typename S, typename F>
void for_vectors(int64_t rows, const F& f) {
  const int64_t vectors = divide_up(rows, lanes<S>);
  for (int64_t v = 0; v < vectors; v += 2) {
    with_count<2>(least(2, vectors - v), [&](auto count) { f(v * lanes<S>, count); });
  }
}

// Adds the product of a strip of weight rows with vectors [block, block + panels) of their columns to `sums`.
template <int rows, int panels, typename E>
__attribute__((noinline)) void add_strip(
    const E* const* a, const Memory<E>* weights, int64_t leading_dim, int64_t depth, int64_t last, Sum<E>* sums,
    int64_t step) {
  using S = Sum<E>;
  Tile<S, rows, panels> tile;
  for (int r = 0; r < rows; ++r) {
    for (int p = 0; p < panels; ++p) tile.at[r][p] = Vectorized<S>::loadu(sums + r * step + p * lanes<S>);
  }
  multiply_in_place<rows, panels, E>(tile, a, weights, leading_dim, depth, last);
  for (int r = 0; r < rows; ++r) {
    for (int p = 0; p < panels; ++p) tile.at[r][p].store(sums + r * step + p * lanes<S>);
  }
}

// c[m][n] (+)= Σ_k a[k * a_step + m] b_k[n] over `depth` factors, for a tile of c, whose `columns` end within its last
// vector; b is a panel of pack_outer. Adds to c unless `begin`. The sum starts from zero, not from c, so that each
// addition doesn't round as coarsely as the total of all rows.
template <int rows, int width, typename E, typename To>
__attribute__((noinline)) void outer_tile(
    const E* a, int64_t a_step, const E* b, int64_t depth, int64_t columns, const To& c, bool begin) {
  using S = Sum<E>;
  Tile<S, rows, width> tile;
  const E* row[rows];
  const int64_t last = lanes_left<S>(columns, (width - 1) * lanes<S>);
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r) row[r] = a + r;
  tile.clear();
  multiply<rows, 1, width>(tile, static_cast<const E* const*>(row), a_step, b, 0, depth);
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 4
    for (int j = 0; j < width; ++j) c.add(r, j * lanes<S>, tile.at[r][j], j == width - 1 ? last : lanes<S>, begin);
  }
}

}  // namespace

template <int width, typename E>
void Packed<width, E>::multiply(
    const E* const* a, int64_t rows, const Panels<E>& panels, int64_t count, const RowSums<Sum<E>>& sums) {
  with_count<most_rows<width>>(rows, [&](auto row_count) {
    with_count<panels_at_once(row_count, width)>(
        count, [&](auto panel_count) { packed_tile<width, row_count, panel_count>(a, panels, sums); });
  });
}

template <int gates, typename E>
void Unpacked<gates, E>::by_rows(
    const E* const* a, int64_t rows, const UnpackedBlock<E>& block, S* room, const RowSums<S>& sums) {
  with_count<unpacked_rows>(rows, [&](auto count) { unpacked_tile<gates, count>(a, block, room, sums); });
}

template <typename E>
void lay_out_columns(const Memory<E>* x, int64_t rows, int64_t values, E* to) {
  using S = Sum<E>;
  const int64_t depth = factors<E>(values);
  for_vectors<S>(rows, [&](int64_t row, auto vectors) {
    for (int j = 0; j < vectors; ++j) {
      const int64_t first = row + j * lanes<S>;
      pack_rows(x + first * values, values, values, lanes_left<S>(rows, first), to + row * depth + j * lanes<S>,
                vectors * lanes<S>);
    }
  });
}

template <int gates, typename E>
void Unpacked<gates, E>::by_columns(
    const E* columns, int64_t rows, const UnpackedBlock<E>& block, S* room, const RowSums<S>& sums) {
  constexpr int64_t square = lanes<S> * lanes<S>;
  S* transposed = room + 2 * gates * square;
  Vectorized<S> bias[gates];
  for (int g = 0; g < gates; ++g) bias[g] = bias_of(block, g);
  for_vectors<S>(rows, [&](int64_t row, auto vectors) {
    for_panels<least(fitting(gates * vectors), columns_units)>(0, block.units, [&](int64_t u, auto units) {
      Tile<S, gates * units, vectors> tile;
      tile.clear();
      multiply_columns<gates, units, vectors, E>(
          tile, block.weights + u * block.leading_dim, block.gate_step, block.leading_dim, columns + row * block.depth,
          block.depth);
      for (int t = 0; t < gates * units; ++t) {
        for (int j = 0; j < vectors; ++j) {
          tile.at[t][j].store(room + (j * gates + t / units) * square + (u + t % units) * lanes<S>);
        }
      }
    });
    for (int j = 0; j < vectors; ++j) {
      const int64_t first = row + j * lanes<S>;
      for (int g = 0; g < gates; ++g) {
        transpose_square(static_cast<const S*>(room) + (j * gates + g) * square, lanes<S>, transposed + g * lanes<S>,
                         gates * lanes<S>);
      }
      for (int64_t r = 0; r < lanes_left<S>(rows, first); ++r) {
        for (int g = 0; g < gates; ++g) {
          (bias[g] + Vectorized<S>::loadu(transposed + (r * gates + g) * lanes<S>))
              .store(sums.row(first + r) + g * lanes<S>);
        }
      }
    }
  });
}

// Reads a few rows of weights at a time, along the rows: along the columns, each value would be on another page.
template <typename E>
void multiply_columns_of(
    const ColumnsOf& of, const E* const* a, int64_t rows, int64_t begin, int64_t end, Sum<E>* sums) {
  using S = Sum<E>;
  constexpr int64_t strip = 8;
  const int64_t step = (end - begin) * lanes<S>;
  for (int64_t k = 0; k < rows * step; k += lanes<S>) Vectorized<S>(S(0)).store(sums + k);
  for (int k = 0; k < of.gates; ++k) {
    for (int64_t unit = 0; unit < of.hidden_size; unit += strip) {
      const int64_t depth = factors<E>(least(strip, of.hidden_size - unit));
      const auto* weights =
          static_cast<const Memory<E>*>(of.weights) + (of.gate_of(k) * of.hidden_size + unit) * of.leading_dim;
      const E* from[unpacked_rows];
      for (int64_t r = 0; r < rows; ++r) from[r] = a[r] + factors<E>(k * of.hidden_size + unit);
      with_count<unpacked_rows>(rows, [&](auto row_count) {
        for_panels<panels_at_once(row_count, 1)>(begin, end, [&](int64_t block, auto panels) {
          add_strip<row_count, panels, E>(
              from, weights + block * lanes<S>, of.leading_dim, depth,
              lanes_left<S>(of.columns, (block + panels - 1) * lanes<S>), sums + (block - begin) * lanes<S>, step);
        });
      });
    }
  }
}

template <typename E, typename To>
void add_outer(
    const E* a, int64_t a_step, int64_t units, const E* b, int64_t count, int64_t columns, const To& c, bool begin) {
  using S = Sum<E>;
  const int64_t depth = factors<E>(count);
  const auto add = [&](int64_t first, auto rows, int64_t vector, auto width) {
    outer_tile<rows, width>(
        a + first, a_step, b + vector * depth * lanes<S>, depth, columns - vector * lanes<S>,
        c.at(first, vector * lanes<S>), begin);
  };
  // Sums of few rows are bound by writing them, so each row is written from end to end.
  if (depth <= 2) {
    for_tiles<1>(units, [&](int64_t first, auto rows) {
      for_outer_panels<S>(columns, [&](int64_t vector, auto width) { add(first, rows, vector, width); });
    });
    return;
  }
  for_outer_panels<S>(columns, [&](int64_t vector, auto width) {
    for_row_tiles<width>(units, [&](int64_t first, auto rows) { add(first, rows, vector, width); });
  });
}

// Cells have 3 or 4 gates. Products with columns of weights use panels of one vector.
#if defined(__AVX512BF16__)
template struct Packed<1, Bfloat16Pair>;
template struct Packed<3, Bfloat16Pair>;
template struct Packed<4, Bfloat16Pair>;
template struct Unpacked<3, Bfloat16Pair>;
template struct Unpacked<4, Bfloat16Pair>;
template void lay_out_columns(const c10::BFloat16*, int64_t, int64_t, Bfloat16Pair*);
template void multiply_columns_of(
    const ColumnsOf&, const Bfloat16Pair* const*, int64_t, int64_t, int64_t, float*);
template void add_outer(
    const Bfloat16Pair*, int64_t, int64_t, const Bfloat16Pair*, int64_t, int64_t, const Totals<float>&, bool);
template void add_outer(
    const Bfloat16Pair*, int64_t, int64_t, const Bfloat16Pair*, int64_t, int64_t, const Rounded<c10::BFloat16>&, bool);
#else
template struct Packed<1, float>;
template struct Packed<3, float>;
template struct Packed<4, float>;
template struct Packed<1, double>;
template struct Packed<3, double>;
template struct Packed<4, double>;
template struct Unpacked<1, float>;
template struct Unpacked<1, double>;
template struct Unpacked<3, float>;
template struct Unpacked<4, float>;
template struct Unpacked<3, double>;
template struct Unpacked<4, double>;
template void lay_out_columns(const float*, int64_t, int64_t, float*);
template void lay_out_columns(const double*, int64_t, int64_t, double*);
template void multiply_columns_of(const ColumnsOf&, const float* const*, int64_t, int64_t, int64_t, float*);
template void multiply_columns_of(const ColumnsOf&, const double* const*, int64_t, int64_t, int64_t, double*);
template void add_outer(const float*, int64_t, int64_t, const float*, int64_t, int64_t, const Totals<float>&, bool);
template void add_outer(const double*, int64_t, int64_t, const double*, int64_t, int64_t, const Totals<double>&, bool);
#endif

}  // namespace fourfold::cpu::FOURFOLD_CPU_LEVEL
