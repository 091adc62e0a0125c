// Products of bfloat16 pairs by AMX: accumulators are tiles of 16 rows and 16 columns, and one instruction multiplies
// up to 16 pairs of each row and column. Compiled only for the AMX level.
#pragma once

#include "cpu/kernels/factor.h"
#include "cpu/kernels/transpose.h"

#if defined(__AMX_BF16__)
namespace fourfold::cpu::FOURFOLD_CPU_LEVEL {

inline constexpr int amx_depth = 16;  // pairs in a tile's row

// The configuration of the tiles 0 to 7: four accumulators; operands of rows and of columns; and the same two for the
// tail of a depth that isn't a multiple of amx_depth.
struct alignas(64) AmxShapes {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};

  AmxShapes(int row_count, int tail) {
    for (int tile = 0; tile < 4; ++tile) set(tile, row_count, 64);
    set(4, row_count, 64);
    set(5, amx_depth, 64);
    if (tail == 0) return;
    set(6, row_count, tail * 4);
    set(7, tail, 64);
  }

  void set(int tile, int row_count, int bytes) {
    rows[tile] = static_cast<uint8_t>(row_count);
    row_bytes[tile] = static_cast<uint16_t>(bytes);
  }
};

// The tile configuration is per thread; a thread releases it at the end of its part.
class TilesInUse {
 public:
  TilesInUse() { configured() = 0; }
  ~TilesInUse() { _tile_release(); }
  TilesInUse(const TilesInUse&) = delete;
  TilesInUse& operator=(const TilesInUse&) = delete;

  static void configure(int rows, int tail) {
    const int wanted = rows * amx_depth + tail;
    if (configured() == wanted) return;
    const AmxShapes shapes(rows, tail);
    _tile_loadconfig(&shapes);
    configured() = wanted;
  }

 private:
  static int& configured() {
    static thread_local int shape = 0;
    return shape;
  }
};

// Rows of factors for AMX, which needs a constant stride between rows. Other rows are copied to `own`.
struct AmxRows {
  const Bfloat16Pair* at;
  int64_t stride;  // bytes

  AmxRows(
      int rows, const Bfloat16Pair* const* a, int64_t a_step, int64_t k, int64_t count, Bfloat16Pair (*own)[amx_depth]) {
    at = own[0];
    stride = sizeof own[0];
    if (a_step == 1) {
      const auto address = [&](int r) { return reinterpret_cast<intptr_t>(a[r]); };
      const int64_t distance = rows > 1 ? address(1) - address(0) : 64;
      bool even = true;
      for (int r = 2; r < rows; ++r) even = even && address(r) - address(r - 1) == distance;
      if (even) {
        at = a[0] + k;
        stride = distance;
        return;
      }
      for (int r = 0; r < rows; ++r) std::memcpy(own[r], a[r] + k, static_cast<size_t>(count) * sizeof(Bfloat16Pair));
    } else if (rows == 16 && a_step == 16 && count == amx_depth) {
      transpose_16(a[0] + k * a_step, 64, reinterpret_cast<float*>(own[0]), amx_depth);  // transposed rows
    } else {
      for (int r = 0; r < rows; ++r) {
        for (int64_t j = 0; j < count; ++j) own[r][j] = a[r][(k + j) * a_step];
      }
    }
  }
};

// multiply() of tile.h; the accumulators are `rows` times panels * width vectors at `tile`.
template <int panels, int width>
void multiply_by_amx(
    int rows, Vectorized<float>* tile, const Bfloat16Pair* const* a, int64_t a_step, const Bfloat16Pair* b, int64_t panel_size,
    int64_t depth) {
  constexpr int columns = panels * width;
  static_assert(columns <= 4);
  const int tail = static_cast<int>(depth % amx_depth);
  TilesInUse::configure(rows, tail);
  float* sums = reinterpret_cast<float*>(tile);
  constexpr int64_t sums_stride = columns * 64;
  constexpr int64_t column_stride = width * 64;
  alignas(64) Bfloat16Pair own[16][amx_depth];
  const auto column = [&](int c, int64_t k) { return b + (c / width) * panel_size + (k * width + c % width) * 16; };

  _tile_loadd(0, sums, sums_stride);
  if constexpr (columns > 1) _tile_loadd(1, sums + 16, sums_stride);
  if constexpr (columns > 2) _tile_loadd(2, sums + 32, sums_stride);
  if constexpr (columns > 3) _tile_loadd(3, sums + 48, sums_stride);
  int64_t k = 0;
  for (; k + amx_depth <= depth; k += amx_depth) {
    const AmxRows row(rows, a, a_step, k, amx_depth, own);
    _tile_loadd(4, row.at, row.stride);
    _tile_loadd(5, column(0, k), column_stride);
    _tile_dpbf16ps(0, 4, 5);
    if constexpr (columns > 1) {
      _tile_loadd(5, column(1, k), column_stride);
      _tile_dpbf16ps(1, 4, 5);
    }
    if constexpr (columns > 2) {
      _tile_loadd(5, column(2, k), column_stride);
      _tile_dpbf16ps(2, 4, 5);
    }
    if constexpr (columns > 3) {
      _tile_loadd(5, column(3, k), column_stride);
      _tile_dpbf16ps(3, 4, 5);
    }
  }
  if (tail > 0) {
    const AmxRows row(rows, a, a_step, k, tail, own);
    _tile_loadd(6, row.at, row.stride);
    _tile_loadd(7, column(0, k), column_stride);
    _tile_dpbf16ps(0, 6, 7);
    if constexpr (columns > 1) {
      _tile_loadd(7, column(1, k), column_stride);
      _tile_dpbf16ps(1, 6, 7);
    }
    if constexpr (columns > 2) {
      _tile_loadd(7, column(2, k), column_stride);
      _tile_dpbf16ps(2, 6, 7);
    }
    if constexpr (columns > 3) {
      _tile_loadd(7, column(3, k), column_stride);
      _tile_dpbf16ps(3, 6, 7);
    }
  }
  _tile_stored(0, sums, sums_stride);
  if constexpr (columns > 1) _tile_stored(1, sums + 16, sums_stride);
  if constexpr (columns > 2) _tile_stored(2, sums + 32, sums_stride);
  if constexpr (columns > 3) _tile_stored(3, sums + 48, sums_stride);
}

}  // namespace fourfold::cpu::FOURFOLD_CPU_LEVEL
#endif
