// Products with an unpacked matrix, for calls with so few rows that packing (panels.h) costs more than it saves.
#pragma once

#include "cpu/kernels/tile.h"

namespace fourfold::cpu::FOURFOLD_CPU_LEVEL {

// tile[g * units + u][j] += Σ_k w[g * group_step + u * leading_dim + k] columns[k * vectors + j] over the factors k:
// rows of w times packed columns. Steps and dimensions of w count values.
template <int groups, int units, int vectors, typename E>
FOURFOLD_FN void multiply_columns(
    Tile<Sum<E>, groups * units, vectors>& tile, const Memory<E>* w, int64_t group_step, int64_t leading_dim,
    const E* columns, int64_t depth) {
  using F = Factor<E>;
  // Several k at once, because the rows' many addresses don't fit the registers.
  constexpr int steps = fitting(6 * vectors);
  const auto add = [&]<int count>(int64_t k, std::integral_constant<int, count>) __attribute__((always_inline)) {
    typename F::Vector column[count * vectors];
    for (int i = 0; i < count * vectors; ++i) column[i] = F::load(columns + (k * vectors + i) * lanes<Sum<E>>);
#pragma GCC unroll 32
    for (int t = 0; t < groups * units; ++t) {
      const E* row = factors_at<E>(w, t / units * group_step + t % units * leading_dim) + k;
#pragma GCC unroll 4
      for (int i = 0; i < count; ++i) {
        const auto weight = F::broadcast(row + i);
#pragma GCC unroll 2
        for (int j = 0; j < vectors; ++j) {
          tile.at[t][j] = F::add_product(weight, column[i * vectors + j], tile.at[t][j]);
        }
      }
    }
  };
  int64_t k = 0;
  for (; k + steps <= depth; k += steps) add(k, std::integral_constant<int, steps>());
  for (; k < depth; ++k) add(k, std::integral_constant<int, 1>());
}

// tile[g * units + u][r] += w[g * group_step + u * leading_dim + k] a[r][k], lane by lane over all factors k; the sum
// of a vector's lanes (sum_lanes) is the product. Steps and dimensions of w count values.
template <int groups, int units, int rows, typename E>
FOURFOLD_FN void multiply_rows(
    Tile<Sum<E>, groups * units, rows>& tile, const Memory<E>* w, int64_t group_step, int64_t leading_dim,
    const E* const* a, int64_t depth) {
  using F = Factor<E>;
  constexpr int64_t lane_count = lanes<Sum<E>>;
  const auto step = [&](int64_t k, const auto& load) __attribute__((always_inline)) {
    typename F::Vector row[rows];
    for (int r = 0; r < rows; ++r) row[r] = load(a[r] + k);
    for (int g = 0; g < groups; ++g) {
      for (int u = 0; u < units; ++u) {
        const auto weights = load(factors_at<E>(w, g * group_step + u * leading_dim) + k);
        for (int r = 0; r < rows; ++r) {
          tile.at[g * units + u][r] = F::add_product(weights, row[r], tile.at[g * units + u][r]);
        }
      }
    }
  };
  const int64_t whole = depth / lane_count * lane_count;
  for (int64_t k = 0; k < whole; k += lane_count) step(k, [](const E* from) { return F::load(from); });
  if (whole < depth) step(whole, [&](const E* from) { return F::load_some(from, depth - whole); });
}

// Loads a vector of factors along the rows; for pairs, from two rows.
template <typename S>
FOURFOLD_FN Vectorized<S> load_column(const S* from, int64_t, int64_t count) {
  return load_lanes(from, count);
}

#if defined(__AVX512BF16__)
FOURFOLD_FN __m512bh load_column(const c10::BFloat16* from, int64_t leading_dim, int64_t count) {
  return reinterpret_cast<__m512bh>(pairs_of(from, from + leading_dim, count));
}
#endif

// tile[r][j] += Σ_k a[r][k] b[k * leading_dim + j * lanes ...] over the factors k: the product with adjacent columns;
// the last vector has `last` of them. The leading dimension counts values.
template <int rows, int width, typename E>
FOURFOLD_FN void multiply_in_place(
    Tile<Sum<E>, rows, width>& tile, const E* const* a, const Memory<E>* b, int64_t leading_dim, int64_t depth,
    int64_t last) {
  using F = Factor<E>;
  constexpr int64_t lane_count = lanes<Sum<E>>;
  const E* row[rows];
  for (int r = 0; r < rows; ++r) row[r] = a[r];
  for (int64_t k = 0; k < depth; ++k, b += F::per_factor * leading_dim) {
    typename F::Vector column[width];
    for (int j = 0; j < width; ++j) {
      column[j] = load_column(b + j * lane_count, leading_dim, j == width - 1 ? last : lane_count);
    }
    for (int r = 0; r < rows; ++r) {
      const auto x = F::broadcast(row[r] + k);
      for (int j = 0; j < width; ++j) tile.at[r][j] = F::add_product(x, column[j], tile.at[r][j]);
    }
  }
}

// The horizontal sums of `lanes` vectors, as one vector.
#if defined(CPU_CAPABILITY_AVX512)
inline Vectorized<float> sum_lanes(const float* vectors) {
  __m512 pairs[8];   // for two rows each: partial sums in each quarter
  __m512 fours[4];   // for four rows each: the sum of each quarter
  for (int i = 0; i < 8; ++i) {
    const __m512 a = _mm512_loadu_ps(vectors + 32 * i);
    const __m512 b = _mm512_loadu_ps(vectors + 32 * i + 16);
    pairs[i] = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
  }
  for (int i = 0; i < 4; ++i) {
    const __m512d a = _mm512_castps_pd(pairs[2 * i]);
    const __m512d b = _mm512_castps_pd(pairs[2 * i + 1]);
    fours[i] = _mm512_add_ps(
        _mm512_castpd_ps(_mm512_unpacklo_pd(a, b)), _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
  }
  const auto add_quarters = [](__m512 a, __m512 b) {
    return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
  };
  return add_quarters(add_quarters(fours[0], fours[1]), add_quarters(fours[2], fours[3]));
}
#elif defined(CPU_CAPABILITY_AVX2)
inline Vectorized<float> sum_lanes(const float* vectors) {
  __m256 fours[2];  // for four rows each: the sum of each half
  for (int i = 0; i < 2; ++i) {
    const float* at = vectors + 32 * i;
    fours[i] = _mm256_hadd_ps(
        _mm256_hadd_ps(_mm256_loadu_ps(at), _mm256_loadu_ps(at + 8)),
        _mm256_hadd_ps(_mm256_loadu_ps(at + 16), _mm256_loadu_ps(at + 24)));
  }
  return _mm256_add_ps(
      _mm256_permute2f128_ps(fours[0], fours[1], 0x20), _mm256_permute2f128_ps(fours[0], fours[1], 0x31));
}
#endif

template <typename S>
Vectorized<S> sum_lanes(const S* vectors) {
  S sums[lanes<S>] = {};
  for (int64_t i = 0; i < lanes<S>; ++i) {
    for (int64_t lane = 0; lane < lanes<S>; ++lane) sums[i] += vectors[i * lanes<S> + lane];
  }
  return Vectorized<S>::loadu(sums);
}

}  // namespace fourfold::cpu::FOURFOLD_CPU_LEVEL
