// The persistent kernels' product of a step: a block's rows, which other blocks may still be writing, times the weights in
// its registers.
#pragma once

#include "mma.cuh"
#include "sequence.cuh"

namespace fourfold::gpu {

// A lane's two rows of a tile, or null.
template <typename T>
struct Rows {
  const T* at[2];
  bool awaited[2];  // whether blocks of this launch write it
};

template <typename T>
FOURFOLD_FN Slot read_slot(const T* from) {
  const uint4 bytes = load_words(from);
  return {{bytes.x, bytes.y, bytes.z, bytes.w}};
}

FOURFOLD_FN bool is_written(const Slot& slot) { return slot.word[3] != unwritten; }

// Gathers strided values into a slot; those from `count` on are zero.
template <typename T>
FOURFOLD_FN Slot gather_slot(const T* from, int64_t stride, int count) {
  AlignedVector<T, slot_size<T>> values;
  for (int e = 0; e < slot_size<T>; ++e) values.v[e] = e < count ? from[e * stride] : T(0);
  return *reinterpret_cast<const Slot*>(&values);
}

// The number of a row's chunks that are loaded before the first one is used: as many as fit the registers besides the
// weights, from Ampere on.
template <typename T, Rounding rounding, int chunks>
constexpr int chunks_in_flight = !std::is_same_v<T, float>   ? 12
                                 : rounding == Rounding::none ? (chunks < 16 ? 3 : 2)
                                 : chunks == 8                ? 3
                                 : chunks < 32                ? 6
                                                              : 4;

// The number of tiles whose slots are loaded together, to wait for them once.
template <typename T, Rounding rounding, int chunks>
constexpr int tiles_at_once = 4 * chunks <= chunks_in_flight<T, rounding, chunks>   ? 4
                              : 2 * chunks <= chunks_in_flight<T, rounding, chunks> ? 2
                                                                                    : 1;

// Loads a lane's slots of its rows: of the first tiles and chunks, as many as there are, from position k of the depth
// on. Repeats the loads of those that are not written yet.
template <int most_tiles, int most_chunks, typename T>
FOURFOLD_FN void read_slots(Slot (&slots)[most_tiles][most_chunks][2], const Rows<T> (&rows)[most_tiles], int tiles,
                            int chunks, int k, int depth) {
#pragma unroll
  for (int tile = 0; tile < most_tiles; ++tile) {
    for (int n = 0; n < most_chunks && n < chunks; ++n) {
      for (int side = 0; side < 2; ++side) {
        const bool has_slot = rows[tile].at[side] != nullptr && k + n * chunk_depth<T> < depth;
        slots[tile][n][side] = {{0, 0, 0, has_slot ? unwritten : 0}};
      }
    }
  }
  while (true) {
#pragma unroll
    for (int tile = 0; tile < most_tiles; ++tile) {
      if (tile >= tiles) break;
      for (int n = 0; n < most_chunks && n < chunks; ++n) {
        for (int side = 0; side < 2; ++side) {
          Slot& slot = slots[tile][n][side];
          if (!is_written(slot)) slot = read_slot(rows[tile].at[side] + k + n * chunk_depth<T>);
        }
      }
    }
    bool waits = false;
#pragma unroll
    for (int tile = 0; tile < most_tiles; ++tile) {
      if (tile >= tiles) break;
      for (int side = 0; side < 2; ++side) {
        bool missing = false;
        for (int n = 0; n < most_chunks && n < chunks; ++n) missing |= !is_written(slots[tile][n][side]);
        waits |= missing && rows[tile].awaited[side];
      }
    }
    if (!waits) break;
    pause();
  }
  sync_group();
}

// sums[warp][tile][row][unit]: the warps' partial sums of a product, one tile for each 16 rows and each column of sum.
template <int columns>
FOURFOLD_FN void store_sums(float* sums, int tiles, int row_tile, const float (&sum)[columns][4]) {
  const int lane = static_cast<int>(threadIdx.x) % group_size;
  const int warp = static_cast<int>(threadIdx.x) / group_size;
  for (int column = 0; column < columns; ++column) {
    float* tile = sums + (warp * tiles + row_tile * columns + column) * tile_values;
    float* at = tile + lane / 4 * block_units + lane % 4 * 2;
    at[0] = sum[column][0];
    at[1] = sum[column][1];
    at[8 * block_units] = sum[column][2];
    at[8 * block_units + 1] = sum[column][3];
  }
}

// Multiplies the warp's part of the block's rows by the same part of its columns, and stores the sums. slot_k: the
// position of the lane's first slot in the depth. rows_of(tile): the lane's rows of a tile.
template <typename T, Rounding rounding, int chunks, int columns, typename RowsOf>
FOURFOLD_FN void multiply_rows(float* sums, int row_tiles, int slot_k, int depth, const Slot (&weights)[chunks][columns],
                               const RowsOf& rows_of) {
  constexpr int most = chunks_in_flight<T, rounding, chunks>;
  constexpr int in_flight = chunks < most ? chunks : most;
  constexpr int tiles = tiles_at_once<T, rounding, chunks>;
  // With one column, consecutive instructions would depend on each other's sums. And the tensor cores truncate sums
  // towards zero: in unrounded float32 this error would accumulate to more than that of the products, so the sums start
  // from zero, and ordinary additions, which round, combine them.
  constexpr int accumulators = columns == 1 ? 4 : 1;
  for (int first_tile = 0; first_tile < row_tiles; first_tile += tiles) {
    Rows<T> rows[tiles] = {};
    float sum[tiles][columns][4] = {};
#pragma unroll
    for (int tile = 0; tile < tiles; ++tile) {
      if (first_tile + tile < row_tiles) rows[tile] = rows_of(first_tile + tile);
    }
#pragma unroll
    for (int first = 0; first < chunks; first += in_flight) {
      Slot slots[tiles][in_flight][2];
      read_slots(slots, rows, row_tiles - first_tile, chunks - first, slot_k + first * chunk_depth<T>, depth);
#pragma unroll
      for (int tile = 0; tile < tiles; ++tile) {
        if (first_tile + tile >= row_tiles) break;
        float part[accumulators][columns][4] = {};
#pragma unroll
        for (int n = 0; n < in_flight && first + n < chunks; ++n) {
          for (int column = 0; column < columns; ++column) {
            multiply_tile<T, rounding>(part[n % accumulators][column], slots[tile][n][0], slots[tile][n][1],
                                       weights[first + n][column]);
          }
        }
        for (int column = 0; column < columns; ++column) {
          for (int n = 0; n < accumulators; ++n) {
            for (int k = 0; k < 4; ++k) sum[tile][column][k] += part[n][column][k];
          }
        }
      }
    }
#pragma unroll
    for (int tile = 0; tile < tiles; ++tile) {
      if (first_tile + tile < row_tiles) store_sums(sums, row_tiles * columns, first_tile + tile, sum[tile]);
    }
  }
}

FOURFOLD_FN float total_of(const float* sums, int tiles, int tile, int value) {
  float total = 0;
  for (int warp = 0; warp < warps; ++warp) total += sums[(warp * tiles + tile) * tile_values + value];
  return total;
}

constexpr int64_t sums_bytes(int row_tiles, int columns) {
  return int64_t(warps) * row_tiles * columns * tile_values * static_cast<int64_t>(sizeof(float));
}

// The sums of alternating steps: a warp may store those of the next step while others still read these. With memory
// for one step only, a second barrier ends each step.
class Sums {
 public:
  FOURFOLD_FN Sums(const Sequence& sequence, int columns)
      : sums_(shared_memory<float>()),
        apart_(sequence.has_two_sums ? static_cast<int>(sums_bytes(sequence.row_tiles, columns) / sizeof(float)) : 0) {}

  FOURFOLD_FN float* of_step(int s) const { return sums_ + s % 2 * apart_; }
  FOURFOLD_FN void finish_step() const {
    if (apart_ == 0) __syncthreads();
  }

 private:
  float* sums_;
  int apart_;
};

}  // namespace fourfold::gpu
