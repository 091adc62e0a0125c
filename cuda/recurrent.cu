#include "recurrent.cuh"

#include <limits>

namespace fourfold::gpu {

std::optional<Sequence> as_sequence(const RecurrentLayer& layer) {
  constexpr int64_t most = std::numeric_limits<int>::max();
  // Slots of 16 bytes begin at multiples of 8 values, and a block has 8 units. One step is no sequence.
  const bool fits = layer.batch >= 1 && layer.batch <= most_rows && layer.hidden_size >= block_units &&
                    layer.hidden_size % block_units == 0 && layer.hidden_size <= most && layer.time >= 2 &&
                    layer.time <= most;
  if (!fits || !limits(layer.place).tile_products) return std::nullopt;
  Sequence sequence{
      .time = static_cast<int>(layer.time),
      .batch = static_cast<int>(layer.batch),
      .hidden_size = static_cast<int>(layer.hidden_size),
      .row_tiles = static_cast<int>((layer.batch + row_tile - 1) / row_tile),
      .reverse = layer.reverse,
      .rows = first_row(layer, layer.time),
      .lengths = {},
      .flags = nullptr,
  };
  for (int64_t t = layer.time; t-- > 0;) {
    const int64_t ending = t + 1 < layer.time ? active_rows(layer, t + 1) : 0;
    for (int64_t row = ending; row < active_rows(layer, t); ++row) sequence.lengths[row] = static_cast<int>(t + 1);
  }
  return sequence;
}

}  // namespace fourfold::gpu
