// Products of rows with a whole matrix, which is packed into panels one vector wide.
#pragma once

#include <cstring>

#include "cpu/kernels/long_sums.h"
#include "cpu/kernels/panels.h"

namespace fourfold::cpu::FOURFOLD_CPU_LEVEL {

// A matrix; step: the distance from one row to the next.
template <typename S>
struct Rows {
  S* data;
  int64_t step;
};

constexpr int64_t near_bytes = 256 * 1024;  // of packed weights: half of many cores' L2 cache

template <typename S>
int64_t panels_of(int64_t columns) {
  return (columns + lanes<S> - 1) / lanes<S>;
}

template <typename S>
int64_t packed_size(int64_t depth, int64_t columns) {
  return panels_of<S>(columns) * lanes<S> * depth;
}

// Packs Wᵀ into panels one vector wide, from W (columns, depth).
template <typename S>
void pack_transposed(Rows<const S> from, int64_t depth, int64_t columns, S* to) {
  for (int64_t first = 0; first < columns; first += lanes<S>, to += depth * lanes<S>) {
    const S* rows = from.data + first * from.step;
    const int64_t count = lanes_left<S>(columns, first);
    if (count == lanes<S> || depth < lanes<S>) {
      pack_rows(rows, from.step, depth, count, to, lanes<S>);
    } else {
      // pack_rows() transposes whole squares in registers, so missing rows are padded with zeros.
      const Scratch<S> padded(lanes<S> * depth);
      for (int64_t k = 0; k < count; ++k) {
        std::memcpy(padded.get() + k * depth, rows + k * from.step, static_cast<size_t>(depth) * sizeof(S));
      }
      std::memset(padded.get() + count * depth, 0, static_cast<size_t>((lanes<S> - count) * depth) * sizeof(S));
      pack_rows(static_cast<const S*>(padded.get()), depth, depth, lanes<S>, to, lanes<S>);
    }
  }
}

// Packs a matrix (depth, columns) into the same panels.
template <typename S>
void pack(Rows<const S> from, int64_t depth, int64_t columns, S* to) {
  for (int64_t first = 0; first < columns; first += lanes<S>, to += depth * lanes<S>) {
    pack_columns(from.data + first, from.step, depth, lanes_left<S>(columns, first), to, lanes<S>);
  }
}

// A second product to add: rows a, with column stride a_column, times packed b.
template <typename S>
struct Addend {
  Rows<const S> a;
  int64_t a_column;
  const S* b;
  int64_t depth;
};

// A tile of the product below: some rows of a times some panels (with `columns` columns left), or times one panel of
// `width` vectors. addend: null, or offset to the same rows and panels. Each shape is a separate function: inlined into
// one, the rows' addresses would be spilled to memory.
template <int height, int width, bool is_one_panel = false, typename S>
__attribute__((noinline)) void product_tile(
    const S* const* row, int64_t a_column, const S* b, int64_t depth, const Addend<S>* addend, Rows<const S> start,
    int64_t columns, Rows<S> out, bool begin) {
  Tile<S, height, width> tile;
  const bool is_whole = columns >= width * lanes<S>;  // no partial vector at the end
  const auto started = [&](const auto& load) __attribute__((always_inline)) {
#pragma GCC unroll 8
    for (int r = 0; r < height; ++r) {
#pragma GCC unroll 8
      for (int j = 0; j < width; ++j) tile.at[r][j] = load(r, j);
    }
  };
  if (start.data == nullptr) {
    tile.clear();
  } else if (is_whole) {
    started([&](int r, int j) { return Vectorized<S>::loadu(start.data + r * start.step + j * lanes<S>); });
  } else {
    started([&](int r, int j) {
      return load_lanes(start.data + r * start.step + j * lanes<S>, lanes_left<S>(columns, j * lanes<S>));
    });
  }
  multiply<height, is_one_panel ? 1 : width, is_one_panel ? width : 1>(tile, row, a_column, b, depth * lanes<S>, depth);
  if constexpr (!is_one_panel) {
    if (addend != nullptr) {
      const S* also[height];
      for (int r = 0; r < height; ++r) also[r] = addend->a.data + r * addend->a.step;
      multiply<height, width, 1>(
          tile, static_cast<const S* const*>(also), addend->a_column, addend->b, addend->depth * lanes<S>, addend->depth);
    }
  }
  if (begin && is_whole) {
#pragma GCC unroll 8
    for (int r = 0; r < height; ++r) {
#pragma GCC unroll 8
      for (int j = 0; j < width; ++j) tile.at[r][j].store(out.data + r * out.step + j * lanes<S>);
    }
    return;
  }
#pragma GCC unroll 8
  for (int r = 0; r < height; ++r) {
#pragma GCC unroll 8
    for (int j = 0; j < width; ++j) {
      const Totals<S> to{out.data, out.step};
      to.add(r, j * lanes<S>, tile.at[r][j], lanes_left<S>(columns, j * lanes<S>), begin);
    }
  }
}

// out = start + a b for the panels [first, last). a: (rows, depth) with row stride a.step and column stride a_column.
// b: packed. start: with row stride start.step, 0 for one row that is broadcast; or null for zero. Unless `begin`, adds
// to out instead. addend: null, or a second product that is added in the same pass.
template <typename S>
void product_of_panels(
    Rows<const S> a, int64_t a_column, int64_t rows, const S* b, int64_t depth, int64_t columns, Rows<const S> start,
    Rows<S> out, int64_t first, int64_t last, bool begin = true, const Addend<S>* addend = nullptr) {
  // All rows are multiplied with a group of panels that stays in the core's L2 cache before the next group is read.
  // With one tile of rows each panel is read only once in any case.
  const int64_t whole_depth = depth + (addend == nullptr ? 0 : addend->depth);
  const int64_t panel_bytes = whole_depth * lanes<S> * static_cast<int64_t>(sizeof(S));
  const bool all_at_once = rows <= most_rows<1> || (last - first) * panel_bytes <= near_bytes;
  const int64_t together = all_at_once ? last - first : 1 + near_bytes / panel_bytes;
  for (int64_t group = first; group < last; group += together) {
    const int64_t end = group + together < last ? group + together : last;
    for_row_tiles<1>(rows, [&](int64_t begin_row, auto height) {
      const S* row[height];
      for (int r = 0; r < height; ++r) row[r] = a.data + (begin_row + r) * a.step;
      for_panels<panels_at_once(height, 1)>(group, end, [&](int64_t panel, auto width) {
        const int64_t column = panel * lanes<S>;
        const S* starts = start.data == nullptr ? nullptr : start.data + begin_row * start.step + column;
        Addend<S> own{};
        if (addend != nullptr) {
          own = *addend;
          own.a.data += begin_row * own.a.step;
          own.b += column * own.depth;
        }
        product_tile<height, width>(
            static_cast<const S* const*>(row), a_column, b + column * depth, depth, addend == nullptr ? nullptr : &own,
            Rows<const S>{starts, start.step}, columns - column,
            Rows<S>{out.data + begin_row * out.step + column, out.step}, begin);
      });
    });
  }
}

// The same for all panels; start is one row.
template <typename S>
void product(
    Rows<const S> a, int64_t a_column, int64_t rows, const S* b, int64_t depth, int64_t columns, const S* start,
    Rows<S> out, bool begin = true) {
  product_of_panels(a, a_column, rows, b, depth, columns, Rows<const S>{start, 0}, out, 0, panels_of<S>(columns), begin);
}

}  // namespace fourfold::cpu::FOURFOLD_CPU_LEVEL
