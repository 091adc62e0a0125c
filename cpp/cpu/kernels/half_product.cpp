#include "cpu/kernels/half_product.h"

#include "cpu/kernels/panels.h"
#include "cpu/kernels/tile.h"

namespace fourfold::cpu::FOURFOLD_CPU_LEVEL {

namespace {

constexpr int steps = 2;                                // of a panel: four vectors of float32
constexpr int most_half_rows = tile_vectors / 6;        // of a tile, whose sums and weights stay in registers
constexpr int64_t panel = steps * step_size<c10::Half>;

// rows of a (contiguous, float32) times a panel.
template <int rows, typename T>
__attribute__((noinline)) void multiply_panel(
    const float* a, const T* weights, int64_t depth, const T* start, int64_t start_row, T* out, int64_t out_row, int64_t columns) {
  Step<T> sums[rows][steps];
  const auto left = [columns](int j) { return columns - j * step_size<T> < step_size<T> ? columns - j * step_size<T> : step_size<T>; };
  for (int r = 0; r < rows; ++r) {
    for (int j = 0; j < steps; ++j) {
      if (start != nullptr && left(j) > 0) {
        sums[r][j] = load(start + r * start_row + j * step_size<T>, left(j));
      } else {
        for (auto& part : sums[r][j].part) part = Vectorized<float>(0.0F);
      }
    }
  }
  for (int64_t k = 0; k < depth; ++k, weights += panel) {
#pragma GCC unroll 2
    for (int j = 0; j < steps; ++j) {
      const Step<T> weight = widened(Vectorized<T>::loadu(weights + j * step_size<T>));
#pragma GCC unroll 4
      for (int r = 0; r < rows; ++r) {
        const Vectorized<float> factor(a[r * depth + k]);
#pragma GCC unroll 2
        for (int p = 0; p < parts<T>; ++p) sums[r][j].part[p] = at::vec::fmadd(factor, weight.part[p], sums[r][j].part[p]);
      }
    }
  }
  for (int r = 0; r < rows; ++r) {
    for (int j = 0; j < steps; ++j) {
      if (left(j) > 0) store(out + r * out_row + j * step_size<T>, sums[r][j], left(j));
    }
  }
}

template <typename T>
void multiply_halves(const PackedProduct& job, int64_t first_panel, int64_t last_panel) {
  const auto* a = static_cast<const T*>(job.a);
  const Scratch<float> factors(most_half_rows * job.depth);
  for_groups(0, job.rows, most_half_rows, [&](int64_t begin, int64_t rows) {
    for (int64_t r = 0; r < rows; ++r) {
      const T* from = a + (begin + r) * job.a_row;
      for (int64_t k = 0; k < job.depth; ++k) factors.get()[r * job.depth + k] = static_cast<float>(from[k * job.a_column]);
    }
    for (int64_t p = first_panel; p < last_panel; ++p) {
      const int64_t column = p * panel;
      const T* start = job.start == nullptr ? nullptr : static_cast<const T*>(job.start) + begin * job.start_row + column;
      T* out = static_cast<T*>(job.out) + begin * job.out_row + column;
      with_count<most_half_rows>(rows, [&](auto height) {
        multiply_panel<height, T>(factors.get(), static_cast<const T*>(job.packed) + column * job.depth, job.depth, start, job.start_row,
                                  out, job.out_row, job.columns - column);
      });
    }
  });
}

}  // namespace

int64_t columns_of_half_panel() {
#if defined(CPU_CAPABILITY_AVX512) || defined(CPU_CAPABILITY_AVX2)
  return panel;
#else
  return 0;
#endif
}

void pack_half(const void* b, int64_t row, int64_t column, int64_t depth, int64_t columns, void* packed) {
  const auto* from = static_cast<const uint16_t*>(b);
  auto* to = static_cast<uint16_t*>(packed);
  for (int64_t first = 0; first < columns; first += panel, to += panel * depth) {
    const int64_t count = columns - first < panel ? columns - first : panel;
    for (int64_t c = 0; c < panel; ++c) {
      const uint16_t* line = from + (first + c) * column;
      for (int64_t k = 0; k < depth; ++k) to[k * panel + c] = c < count ? line[k * row] : uint16_t{0};
    }
  }
}

void multiply_half(const PackedProduct& job, int64_t first_panel, int64_t last_panel) {
  job.kind == Kind::bfloat16 ? multiply_halves<c10::BFloat16>(job, first_panel, last_panel)
                             : multiply_halves<c10::Half>(job, first_panel, last_panel);
}

}  // namespace fourfold::cpu::FOURFOLD_CPU_LEVEL
