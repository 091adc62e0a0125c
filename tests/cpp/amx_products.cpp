// The products of cpp/cpu/kernels/amx.h, with the instructions of amx_twin.h, against plain loops. The factors are
// small integers, so that every sum is exact.
#include "cpu/kernels/tile.h"

#include <cstdio>
#include <vector>

using namespace fourfold::cpu::FOURFOLD_CPU_LEVEL;

namespace {

int failures = 0;
int value_at(int64_t k) { return static_cast<int>(k * 7919 % 17) - 8; }

uint16_t as_bfloat16(int value) {
  const auto number = static_cast<float>(value);
  uint32_t bits;
  std::memcpy(&bits, &number, sizeof bits);
  return static_cast<uint16_t>(bits >> 16);
}

// The layout of a product's rows: at one distance, at any distance, or as a strip with factors a vector apart.
enum class Layout { even, scattered, strip };

template <int rows, int panels, int width>
void check(int64_t depth, Layout layout) {
  constexpr int columns = panels * width;
  const int64_t step = layout == Layout::strip ? 16 : 1;
  const auto row_at = [&](int r) -> int64_t {
    if (layout == Layout::strip) return r;
    return layout == Layout::even ? r * (depth + 3) : (r * 5 % rows) * (depth + 1) + r % 3;
  };
  std::vector<Bfloat16Pair> a(static_cast<size_t>(16 * (depth + 4) + 16));
  for (size_t k = 0; k < a.size(); ++k) {
    a[k] = {as_bfloat16(value_at(static_cast<int64_t>(2 * k))), as_bfloat16(value_at(static_cast<int64_t>(2 * k + 1)))};
  }
  const int64_t panel_size = depth * width * 16 + 32;
  std::vector<Bfloat16Pair> b(static_cast<size_t>(panels * panel_size));
  for (size_t k = 0; k < b.size(); ++k) {
    b[k] = {as_bfloat16(value_at(static_cast<int64_t>(3 * k + 1))), as_bfloat16(value_at(static_cast<int64_t>(5 * k)))};
  }
  const Bfloat16Pair* row[rows];
  for (int r = 0; r < rows; ++r) row[r] = a.data() + row_at(r);
  Tile<float, rows, columns> tile;
  for (int r = 0; r < rows; ++r) {
    for (int c = 0; c < columns; ++c) tile.at[r][c] = Vectorized<float>(static_cast<float>(r - c));
  }
  multiply<rows, panels, width>(tile, static_cast<const Bfloat16Pair* const*>(row), step, b.data(), panel_size, depth);
  for (int r = 0; r < rows; ++r) {
    for (int c = 0; c < columns; ++c) {
      float got[16];
      tile.at[r][c].store(got);
      for (int lane = 0; lane < 16; ++lane) {
        int64_t wanted = r - c;
        for (int64_t k = 0; k < depth; ++k) {
          const int64_t x = row_at(r) + k * step;
          const int64_t y = (c / width) * panel_size + (k * width + c % width) * 16 + lane;
          wanted += value_at(2 * x) * value_at(3 * y + 1) + value_at(2 * x + 1) * value_at(5 * y);
        }
        if (got[lane] == static_cast<float>(wanted)) continue;
        if (failures++ < 10) {
          std::printf("%d rows, %d panels of %d, depth %ld, layout %d: %g instead of %ld\n", rows, panels, width,
                      static_cast<long>(depth), static_cast<int>(layout), got[lane], static_cast<long>(wanted));
        }
      }
    }
  }
}

template <int rows>
void check_rows() {
  for (int64_t depth : {1, 5, 15, 16, 17, 32, 40, 64}) {
    for (const Layout layout : {Layout::even, Layout::scattered, Layout::strip}) {
      check<rows, 1, 1>(depth, layout);
      check<rows, 2, 1>(depth, layout);
      check<rows, 4, 1>(depth, layout);
      check<rows, 1, 2>(depth, layout);
      check<rows, 1, 3>(depth, layout);
      check<rows, 1, 4>(depth, layout);
    }
  }
}

}  // namespace

int main() {
  const TilesInUse tiles;
  check_rows<1>();
  check_rows<2>();
  check_rows<7>();
  check_rows<15>();
  check_rows<16>();
  std::puts(failures == 0 ? "passed" : "failed");
  return failures == 0 ? 0 : 1;
}
