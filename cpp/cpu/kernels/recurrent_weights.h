// A recurrent layer's weights for the forward, packed for the call or unpacked.
//
// Both compute products of some rows with a block of hidden units, including the biases, as tiles whose rows have the
// block's gates one after the other.
#pragma once

#include "cpu/kernels/products.h"
#include "cpu/kernels/recurrent.h"

namespace fourfold::cpu::FOURFOLD_CPU_LEVEL {

// Packed by blocks of hidden units. A block contains, one after the other: the input's biases, the input's panel
// (input_size deep), the biases of h, the panel of h (hidden_size deep). A panel's vectors are the block's gates.
// Biases have the accumulator's type, which is as large as a factor.
template <typename Cell, typename E>
struct PackedLayer {
  using M = Memory<E>;
  using S = Sum<E>;
  static_assert(sizeof(S) == sizeof(E));
  static constexpr int gates = Cell::gates;
  static constexpr int64_t width = gates * lanes<S>;
  static constexpr int tile_rows = most_rows<gates>;
  static constexpr int tile_vectors = most_vectors<gates>;
  static int64_t tile_panels(int64_t rows) { return panels_at_once(static_cast<int>(rows), gates); }
  static constexpr bool in_place = false;
  static constexpr int64_t room = 0;  // scratch memory of a thread

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

  void by_input(const E* const* x, int64_t rows, int64_t block, S*, const RowSums<S>& sums) const {
    Packed<gates, E>::multiply(
        x, rows, {input_panel(block), 0, factors<E>(input_size), input_bias(block)}, 1, sums);
  }

  void by_hidden(const E* const* h, int64_t rows, int64_t block, int64_t panels, S*, const RowSums<S>& sums) const {
    Packed<gates, E>::multiply(
        h, rows, {hidden_panel(block), block_size(), factors<E>(hidden_size), hidden_bias(block)}, panels, sums);
  }
};

// In torch's layout. Few rows are multiplied with rows of weights by vectors along the depth. If there are enough rows
// to fill vectors, rows are the lanes and weights are broadcast, without horizontal sums.
template <typename Cell, typename E>
struct UnpackedLayer {
  using M = Memory<E>;
  using S = Sum<E>;
  static constexpr int gates = Cell::gates;
  static constexpr int tile_rows = unpacked_rows;
  static constexpr int tile_vectors = tile_rows * gates;
  static int64_t tile_panels(int64_t) { return 1; }
  static constexpr bool in_place = true;
  static constexpr int64_t room = Unpacked<gates, E>::room;

  const RecurrentLayer& layer;

  explicit UnpackedLayer(const RecurrentLayer& layer) : layer(layer) {}

  int64_t blocks() const { return divide_up(layer.hidden_size, lanes<S>); }

  // Takes all of the input's rows, packed as columns.
  void by_columns(const E* columns, int64_t rows, int64_t block, S* room, const RowSums<S>& sums) const {
    Unpacked<gates, E>::by_columns(columns, rows, input_block(block), room, sums);
  }

  void by_input(const E* const* x, int64_t rows, int64_t block, S* room, const RowSums<S>& sums) const {
    Unpacked<gates, E>::by_rows(x, rows, input_block(block), room, sums);
  }

  void by_hidden(const E* const* h, int64_t rows, int64_t block, int64_t, S* room, const RowSums<S>& sums) const {
    Unpacked<gates, E>::by_rows(
        h, rows,
        block_of(block, layer.weight_hh, layer.weight_hh_leading_dim, layer.bias_hh, layer.hidden_size), room, sums);
  }

 private:
  UnpackedBlock<E> input_block(int64_t block) const {
    return block_of(block, layer.weight_ih, layer.weight_ih_leading_dim, layer.bias_ih, layer.input_size);
  }

  UnpackedBlock<E> block_of(
      int64_t block, const void* weights, int64_t leading_dim, const void* bias, int64_t depth) const {
    const int64_t unit = block * lanes<S>;
    return {static_cast<const M*>(weights) + unit * leading_dim,
            leading_dim,
            layer.hidden_size * leading_dim,
            at_row(static_cast<const M*>(bias), unit, 1),
            layer.hidden_size,
            lanes_left<S>(layer.hidden_size, unit),
            factors<E>(depth)};
  }
};

}  // namespace fourfold::cpu::FOURFOLD_CPU_LEVEL
