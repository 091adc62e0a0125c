// AMX's instructions emulated in plain C++, as Intel's manual defines them, so that cpp/cpu/kernels/amx.h runs on a CPU
// without AMX. Included before everything else (-include), together with -D__AMX_BF16__.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace amx_twin {

struct Config {
  uint8_t palette;
  uint8_t start_row;
  uint8_t reserved[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
};
static_assert(sizeof(Config) == 64);

inline thread_local Config config;
inline thread_local unsigned char tiles[8][16][64];

inline void expect(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "amx_twin: %s\n", what);
  std::abort();
}

inline void load_config(const void* from) {
  std::memcpy(&config, from, sizeof config);
  expect(config.palette == 1, "palette 1 is the only one");
  for (int tile = 0; tile < 8; ++tile) expect(config.rows[tile] <= 16 && config.row_bytes[tile] <= 64, "a tile's size");
  std::memset(tiles, 0, sizeof tiles);
}

inline void release() { std::memset(&config, 0, sizeof config); }

inline void load(int tile, const void* from, int64_t stride) {
  expect(config.palette == 1 && config.rows[tile] > 0, "a tile is used that is not configured");
  std::memset(tiles[tile], 0, sizeof tiles[tile]);
  for (int row = 0; row < config.rows[tile]; ++row) {
    std::memcpy(tiles[tile][row], static_cast<const char*>(from) + row * stride, config.row_bytes[tile]);
  }
}

inline void store(int tile, void* to, int64_t stride) {
  expect(config.palette == 1 && config.rows[tile] > 0, "a tile is used that is not configured");
  for (int row = 0; row < config.rows[tile]; ++row) {
    std::memcpy(static_cast<char*>(to) + row * stride, tiles[tile][row], config.row_bytes[tile]);
  }
}

inline float value(const unsigned char* bfloat16) {
  const uint32_t bits = static_cast<uint32_t>(bfloat16[0] | (bfloat16[1] << 8)) << 16;
  float result;
  std::memcpy(&result, &bits, sizeof result);
  return result;
}

// sums[m][n] += Σ_k a[m][k] · b[k][n], over pairs.
inline void dot(int sums, int a, int b) {
  expect(config.row_bytes[a] / 4 == config.rows[b], "the factors' depths differ");
  expect(config.rows[sums] == config.rows[a] && config.row_bytes[sums] == config.row_bytes[b], "the sums' shape");
  for (int m = 0; m < config.rows[sums]; ++m) {
    for (int n = 0; n < config.row_bytes[sums] / 4; ++n) {
      float sum;
      std::memcpy(&sum, &tiles[sums][m][4 * n], sizeof sum);
      for (int k = 0; k < config.rows[b]; ++k) {
        sum += value(&tiles[a][m][4 * k]) * value(&tiles[b][k][4 * n]);
        sum += value(&tiles[a][m][4 * k + 2]) * value(&tiles[b][k][4 * n + 2]);
      }
      std::memcpy(&tiles[sums][m][4 * n], &sum, sizeof sum);
    }
  }
}

}  // namespace amx_twin

#undef _tile_loadconfig
#undef _tile_release
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbf16ps
#define _tile_loadconfig amx_twin::load_config
#define _tile_release amx_twin::release
#define _tile_loadd amx_twin::load
#define _tile_stored amx_twin::store
#define _tile_dpbf16ps amx_twin::dot
