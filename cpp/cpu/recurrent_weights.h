// A recurrent layer's weights as the forward multiplies with them: packed for the call, or where torch keeps them.
//
// Both give the products of some rows with a block of hidden units, begun with the biases, as tiles of which each row has
// the block's gates side by side.
#pragma once

#include "cpu/recurrent.h"
#include "cpu/unpacked.h"

namespace fourfold::cpu::FOURFOLD_CPU_LEVEL {

// Packed by blocks of hidden units; a block holds, one after the other: its biases by input, its panel by input
// (input_size deep), its biases by h, its panel by h (hidden_size deep). A panel's vectors are a block's gates side by
// side. Biases are of the type that products are summed in, which is as large as a factor.
template <typename Cell, typename E>
struct PackedLayer {
  using M = Memory<E>;
  using S = Sum<E>;
  static_assert(sizeof(S) == sizeof(E));
  static constexpr int gates = Cell::gates;
  static constexpr int64_t width = gates * lanes<S>;
  static constexpr int tile_rows = most_rows<gates>;
  template <int rows>
  static constexpr int tile_panels = panels_at_once<rows, gates>;
  static constexpr bool in_place = false;
  static int64_t columns_size(const RecurrentLayer&, int64_t) { return 0; }
  static constexpr int64_t room = 0;  // what a thread needs beside the weights

  int64_t input_size;
  int64_t hidden_size;
  E* data;

  explicit PackedLayer(const RecurrentLayer& layer, void* memory = nullptr)
      : input_size(layer.input_size), hidden_size(layer.hidden_size), data(static_cast<E*>(memory)) {}

  int64_t blocks() const { return divide_up(hidden_size, lanes<S>); }
  int64_t block_size() const { return (factors<E>(input_size) + factors<E>(hidden_size) + 2) * width; }
  int64_t size() const { return blocks() * block_size(); }
  S* input_bias(int64_t block) const { return reinterpret_cast<S*>(data + block * block_size()); }
  E* input_panel(int64_t block) const { return data + block * block_size() + width; }
  S* hidden_bias(int64_t block) const {
    return reinterpret_cast<S*>(input_panel(block) + factors<E>(input_size) * width);
  }
  E* hidden_panel(int64_t block) const { return input_panel(block) + (factors<E>(input_size) + 1) * width; }

  void pack(const RecurrentLayer& layer, int64_t begin, int64_t end) const {
    const int64_t ih = layer.weight_ih_leading_dim;
    const int64_t hh = layer.weight_hh_leading_dim;
    for (int64_t block = begin; block < end; ++block) {
      for (int g = 0; g < gates; ++g) {
        const int64_t unit = block * lanes<S>;
        const int64_t row = g * hidden_size + unit;
        const int64_t count = lanes_left<S>(hidden_size, unit);
        const int64_t at = g * lanes<S>;
        store_lanes(input_bias(block) + at, load_or_zero(static_cast<const M*>(layer.bias_ih), row, count), lanes<S>);
        store_lanes(hidden_bias(block) + at, load_or_zero(static_cast<const M*>(layer.bias_hh), row, count), lanes<S>);
        const M* by_input = static_cast<const M*>(layer.weight_ih) + row * ih;
        const M* by_h = static_cast<const M*>(layer.weight_hh) + row * hh;
        pack_rows(by_input, ih, input_size, count, input_panel(block) + at, width);
        pack_rows(by_h, hh, hidden_size, count, hidden_panel(block) + at, width);
      }
    }
  }

  template <int rows>
  FOURFOLD_FN void by_input(Tile<S, rows, gates>& tile, const E* const* x, int64_t block, S*) const {
    begin_tile<rows, 1>(tile, input_bias(block));
    multiply<rows, 1, gates>(tile, x, 1, input_panel(block), 0, factors<E>(input_size));
  }

  template <int rows, int panels>
  FOURFOLD_FN void by_hidden(Tile<S, rows, panels * gates>& tile, const E* const* h, int64_t block, S*) const {
    begin_tile<rows, panels>(tile, hidden_bias(block));
    multiply<rows, panels, gates>(tile, h, 1, hidden_panel(block), block_size(), factors<E>(hidden_size));
  }

 private:
  template <int rows, int panels>
  FOURFOLD_FN void begin_tile(Tile<S, rows, panels * gates>& tile, const S* bias) const {
    for (int p = 0; p < panels; ++p) {
      for (int g = 0; g < gates; ++g) {
        const auto start = Vectorized<S>::loadu(bias + p * block_size() + g * lanes<S>);
        for (int r = 0; r < rows; ++r) tile.at[r][p * gates + g] = start;
      }
    }
  }
};

// As torch lays them out. Few rows are multiplied with rows of weights by vectors along the depth. Where there are enough
// rows to fill vectors, they become the lanes, and factors from the weights are single values: no lanes are summed up.
template <typename Cell, typename E>
struct UnpackedLayer {
  using M = Memory<E>;
  using S = Sum<E>;
  static constexpr int gates = Cell::gates;
  static constexpr int tile_rows = 4;
  template <int rows>
  static constexpr int tile_panels = 1;
  static constexpr bool in_place = true;
  static constexpr int64_t room = tile_rows * gates * lanes<S> * lanes<S>;

  const RecurrentLayer& layer;

  explicit UnpackedLayer(const RecurrentLayer& layer) : layer(layer) {}

  int64_t blocks() const { return divide_up(layer.hidden_size, lanes<S>); }

  // The factors of all rows of the input as columns, in pairs of vectors of rows.
  static int64_t columns_size(const RecurrentLayer& layer, int64_t rows) {
    return divide_up(rows, lanes<S>) * lanes<S> * factors<E>(layer.input_size);
  }

  void lay_out_columns(const M* x, int64_t rows, E* to) const {
    const int64_t depth = factors<E>(layer.input_size);
    for_vectors(rows, [&](int64_t row, auto vectors) {
      for (int j = 0; j < vectors; ++j) {
        const int64_t first = row + j * lanes<S>;
        pack_rows(x + first * layer.input_size, layer.input_size, layer.input_size, lanes_left<S>(rows, first),
                  to + row * depth + j * lanes<S>, vectors * lanes<S>);
      }
    });
  }

  // The products of all rows, of columns laid out so, with a block's weights; calls store(row, gates).
  template <typename F>
  void by_columns(const E* columns, int64_t rows, int64_t block, S* room, const F& store) const {
    constexpr int64_t square = lanes<S> * lanes<S>;
    const int64_t depth = factors<E>(layer.input_size);
    const int64_t leading_dim = layer.weight_ih_leading_dim;
    const int64_t unit = block * lanes<S>;
    const int64_t count = lanes_left<S>(layer.hidden_size, unit);
    const M* weights = static_cast<const M*>(layer.weight_ih) + unit * leading_dim;
    S* transposed = room + 2 * gates * square;
    Vectorized<S> bias[gates];
    for (int g = 0; g < gates; ++g) bias[g] = bias_of(layer.bias_ih, g, unit, count);
    for_vectors(rows, [&](int64_t row, auto vectors) {
      constexpr int most_units = fitting(gates * vectors);
      for_panels<most_units>(0, count, [&](int64_t u, auto units) {
        Tile<S, gates * units, vectors> tile;
        tile.clear();
        multiply_columns<gates, units, vectors, E>(
            tile, weights + u * leading_dim, layer.hidden_size * leading_dim, leading_dim, columns + row * depth, depth);
        for (int t = 0; t < gates * units; ++t) {
          for (int j = 0; j < vectors; ++j) {
            tile.at[t][j].store(room + (j * gates + t / units) * square + (u + t % units) * lanes<S>);
          }
        }
      });
      for (int j = 0; j < vectors; ++j) {
        const int64_t first = row + j * lanes<S>;
        for (int g = 0; g < gates; ++g) {
          transpose_square(static_cast<const S*>(room) + (j * gates + g) * square, lanes<S>,
                           transposed + g * lanes<S>, gates * lanes<S>);
        }
        for (int64_t r = 0; r < lanes_left<S>(rows, first); ++r) {
          Values<Vectorized<S>, gates> values;
          for (int g = 0; g < gates; ++g) {
            values.v[g] = bias[g] + Vectorized<S>::loadu(transposed + (r * gates + g) * lanes<S>);
          }
          store(first + r, values);
        }
      }
    });
  }

  template <int rows>
  FOURFOLD_FN void by_input(Tile<S, rows, gates>& tile, const E* const* x, int64_t block, S* sums) const {
    product<rows>(
        tile, x, block, layer.weight_ih, layer.weight_ih_leading_dim, layer.input_size, layer.bias_ih, sums);
  }

  template <int rows, int panels>
  FOURFOLD_FN void by_hidden(Tile<S, rows, gates>& tile, const E* const* h, int64_t block, S* sums) const {
    static_assert(panels == 1);
    product<rows>(
        tile, h, block, layer.weight_hh, layer.weight_hh_leading_dim, layer.hidden_size, layer.bias_hh, sums);
  }

 private:
  template <typename F>
  static void for_vectors(int64_t rows, const F& f) {
    const int64_t vectors = divide_up(rows, lanes<S>);
    for (int64_t v = 0; v < vectors; v += 2) {
      with_count<2>(least(2, vectors - v), [&](auto count) { f(v * lanes<S>, count); });
    }
  }

  Vectorized<S> bias_of(const void* bias, int g, int64_t unit, int64_t count) const {
    return load_or_zero(static_cast<const M*>(bias), g * layer.hidden_size + unit, count);
  }

  template <int rows>
  FOURFOLD_FN void product(
      Tile<S, rows, gates>& tile, const E* const* a, int64_t block, const void* weights, int64_t leading_dim,
      int64_t depth, const void* bias, S* sums) const {
    // Enough sums at once to hide a multiply-add's latency: of all gates, or of some units where rows are many.
    constexpr int together = gates * rows <= tile_vectors ? gates : 1;
    constexpr int units_at_once = least(fitting(together * rows), 2);
    const int64_t unit = block * lanes<S>;
    const int64_t count = lanes_left<S>(layer.hidden_size, unit);
    const int64_t gate_step = layer.hidden_size * leading_dim;
    const M* first = static_cast<const M*>(weights) + unit * leading_dim;
    for_panels<units_at_once>(0, count, [&](int64_t u, auto units) {
      for (int gate = 0; gate < gates; gate += together) {
        Tile<S, together * units, rows> dots;
        dots.clear();
        multiply_rows<together, units, rows, E>(
            dots, first + gate * gate_step + u * leading_dim, gate_step, leading_dim, a, factors<E>(depth));
        for (int t = 0; t < together * units; ++t) {
          for (int r = 0; r < rows; ++r) {
            dots.at[t][r].store(sums + ((r * gates + gate + t / units) * lanes<S> + u + t % units) * lanes<S>);
          }
        }
      }
    });
    for (int g = 0; g < gates; ++g) {
      const auto start = bias_of(bias, g, unit, count);
      for (int r = 0; r < rows; ++r) {
        tile.at[r][g] = start + sum_lanes(static_cast<const S*>(sums) + (r * gates + g) * lanes<S> * lanes<S>);
      }
    }
  }
};

}  // namespace fourfold::cpu::FOURFOLD_CPU_LEVEL
