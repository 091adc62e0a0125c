// Transposes squares of 4-byte values, one vector wide, and of 2-byte values, in registers.
#pragma once

#include "cpu/kernels/vec.h"

#if defined(CPU_CAPABILITY_AVX512)
namespace fourfold::cpu::FOURFOLD_CPU_LEVEL {

// to[k * to_step + lane] = from[lane * leading_dim + k] for 16 lanes and 16 k, for any 4-byte values; leading_dim is in
// bytes.
inline void transpose_16(const void* from, int64_t leading_dim, float* to, int64_t to_step) {
  __m512 r[16];
  __m512 t[16];
  for (int i = 0; i < 16; ++i) r[i] = _mm512_loadu_ps(static_cast<const char*>(from) + i * leading_dim);
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
  }
  // Afterwards quarter b of r[4q + j] has column 4b + j of the rows 4q to 4q + 3.
  const auto pairs = [](bool high, __m512 a, __m512 b) {
    const __m512d x = _mm512_castps_pd(a);
    const __m512d y = _mm512_castps_pd(b);
    return _mm512_castpd_ps(high ? _mm512_unpackhi_pd(x, y) : _mm512_unpacklo_pd(x, y));
  };
  for (int q = 0; q < 16; q += 4) {
    for (int j = 0; j < 4; ++j) r[q + j] = pairs(j % 2 == 1, t[q + j / 2], t[q + j / 2 + 2]);
  }
  for (int j = 0; j < 4; ++j) {
    const __m512 even_low = _mm512_shuffle_f32x4(r[j], r[4 + j], 0x88);
    const __m512 even_high = _mm512_shuffle_f32x4(r[8 + j], r[12 + j], 0x88);
    const __m512 odd_low = _mm512_shuffle_f32x4(r[j], r[4 + j], 0xdd);
    const __m512 odd_high = _mm512_shuffle_f32x4(r[8 + j], r[12 + j], 0xdd);
    _mm512_storeu_ps(to + j * to_step, _mm512_shuffle_f32x4(even_low, even_high, 0x88));
    _mm512_storeu_ps(to + (4 + j) * to_step, _mm512_shuffle_f32x4(odd_low, odd_high, 0x88));
    _mm512_storeu_ps(to + (8 + j) * to_step, _mm512_shuffle_f32x4(even_low, even_high, 0xdd));
    _mm512_storeu_ps(to + (12 + j) * to_step, _mm512_shuffle_f32x4(odd_low, odd_high, 0xdd));
  }
}

}  // namespace fourfold::cpu::FOURFOLD_CPU_LEVEL
#elif defined(CPU_CAPABILITY_AVX2)
namespace fourfold::cpu::FOURFOLD_CPU_LEVEL {

// to[k * to_step + lane] = from[lane * leading_dim + k] for 8 lanes and 8 k.
inline void transpose_8(const float* from, int64_t leading_dim, float* to, int64_t to_step) {
  const auto pairs = [](bool high, __m256 a, __m256 b) {
    const __m256d x = _mm256_castps_pd(a);
    const __m256d y = _mm256_castps_pd(b);
    return _mm256_castpd_ps(high ? _mm256_unpackhi_pd(x, y) : _mm256_unpacklo_pd(x, y));
  };
  for (int k = 0; k < 8; k += 4) {
    __m256 r[4];  // columns k to k + 3 of the rows i and i + 4
    for (int i = 0; i < 4; ++i) {
      const float* row = from + i * leading_dim + k;
      r[i] = _mm256_insertf128_ps(
          _mm256_castps128_ps256(_mm_loadu_ps(row)), _mm_loadu_ps(row + 4 * leading_dim), 1);
    }
    const __m256 low[2] = {_mm256_unpacklo_ps(r[0], r[1]), _mm256_unpacklo_ps(r[2], r[3])};
    const __m256 high[2] = {_mm256_unpackhi_ps(r[0], r[1]), _mm256_unpackhi_ps(r[2], r[3])};
    _mm256_storeu_ps(to + k * to_step, pairs(false, low[0], low[1]));
    _mm256_storeu_ps(to + (k + 1) * to_step, pairs(true, low[0], low[1]));
    _mm256_storeu_ps(to + (k + 2) * to_step, pairs(false, high[0], high[1]));
    _mm256_storeu_ps(to + (k + 3) * to_step, pairs(true, high[0], high[1]));
  }
}

}  // namespace fourfold::cpu::FOURFOLD_CPU_LEVEL
#endif

#if defined(CPU_CAPABILITY_AVX512) || defined(CPU_CAPABILITY_AVX2)
namespace fourfold::cpu::FOURFOLD_CPU_LEVEL {

// to[k * to_step + lane] = from[lane * leading_dim + k] for 8 lanes and 8 k, for any 2-byte values.
inline void transpose_8(const uint16_t* from, int64_t leading_dim, uint16_t* to, int64_t to_step) {
  __m128i pairs[8];  // of the rows i and i + 1: columns 0 to 3, then 4 to 7
  for (int i = 0; i < 8; i += 2) {
    const __m128i one = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i * leading_dim));
    const __m128i other = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + (i + 1) * leading_dim));
    pairs[i] = _mm_unpacklo_epi16(one, other);
    pairs[i + 1] = _mm_unpackhi_epi16(one, other);
  }
  for (int half = 0; half < 2; ++half) {
    const __m128i low[2] = {_mm_unpacklo_epi32(pairs[half], pairs[2 + half]), _mm_unpacklo_epi32(pairs[4 + half], pairs[6 + half])};
    const __m128i high[2] = {_mm_unpackhi_epi32(pairs[half], pairs[2 + half]), _mm_unpackhi_epi32(pairs[4 + half], pairs[6 + half])};
    const auto store = [&](int k, __m128i row) { _mm_storeu_si128(reinterpret_cast<__m128i*>(to + (4 * half + k) * to_step), row); };
    store(0, _mm_unpacklo_epi64(low[0], low[1]));
    store(1, _mm_unpackhi_epi64(low[0], low[1]));
    store(2, _mm_unpacklo_epi64(high[0], high[1]));
    store(3, _mm_unpackhi_epi64(high[0], high[1]));
  }
}

}  // namespace fourfold::cpu::FOURFOLD_CPU_LEVEL
#endif
