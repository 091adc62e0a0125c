// Packing of matrices into panels (tile.h).
#pragma once

#include <cstdlib>
#include <new>

#include "cpu/tile.h"

namespace fourfold::cpu::FOURFOLD_CPU_LEVEL {

// Memory for a call's own use, aligned for vector loads.
template <typename S>
class Scratch {
 public:
  explicit Scratch(int64_t count)
      : data_(static_cast<S*>(std::aligned_alloc(64, (static_cast<size_t>(count) * sizeof(S) + 63) / 64 * 64 + 64))) {
    if (data_ == nullptr) throw std::bad_alloc();
  }
  ~Scratch() { std::free(data_); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  S* get() const { return data_; }

 private:
  S* data_;
};

template <typename S>
Vectorized<S> load_lanes(const S* from, int64_t count) {
  return count == lanes<S> ? Vectorized<S>::loadu(from) : Vectorized<S>::loadu(from, count);
}

template <typename S>
void store_lanes(S* to, const Vectorized<S>& v, int64_t count) {
  if (count == lanes<S>) {
    v.store(to);
  } else {
    v.store(to, static_cast<int>(count));
  }
}

// How many of the lanes from `first` on are below `size`.
template <typename S>
int64_t lanes_left(int64_t size, int64_t first) {
  return size - first < lanes<S> ? size - first : lanes<S>;
}

#if defined(CPU_CAPABILITY_AVX512)
// to[k * to_step + lane] = from[lane * leading_dim + k] for 16 lanes and as many k.
inline void transpose_square(const float* from, int64_t leading_dim, float* to, int64_t to_step) {
  __m512 r[16];
  __m512 t[16];
  for (int i = 0; i < 16; ++i) r[i] = _mm512_loadu_ps(from + i * leading_dim);
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
  }
  // r[4q + j] then has, in its quarter b, column 4b + j of the rows 4q to 4q + 3.
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
#endif

template <typename S>
void transpose_square(const S* from, int64_t leading_dim, S* to, int64_t to_step) {
  for (int64_t lane = 0; lane < lanes<S>; ++lane) {
    for (int64_t k = 0; k < lanes<S>; ++k) to[k * to_step + lane] = from[lane * leading_dim + k];
  }
}

// One vector of a panel's columns, that are rows of `from`: to[k * to_step + lane] = from[lane * leading_dim + k].
template <typename S>
void pack_rows(const S* from, int64_t leading_dim, int64_t depth, int64_t count, S* to, int64_t to_step) {
  int64_t k = 0;
  if (count == lanes<S>) {
    for (; k + lanes<S> <= depth; k += lanes<S>) {
      transpose_square(from + k, leading_dim, to + k * to_step, to_step);
    }
  }
  for (; k < depth; ++k) {
    for (int64_t lane = 0; lane < count; ++lane) to[k * to_step + lane] = from[lane * leading_dim + k];
    for (int64_t lane = count; lane < lanes<S>; ++lane) to[k * to_step + lane] = S(0);
  }
}

// The same where the columns lie side by side: to[k * to_step + lane] = from[k * leading_dim + lane].
template <typename S>
void pack_columns(const S* from, int64_t leading_dim, int64_t depth, int64_t count, S* to, int64_t to_step) {
  for (int64_t k = 0; k < depth; ++k) {
    store_lanes(to + k * to_step, load_lanes(from + k * leading_dim, count), lanes<S>);
  }
}

}  // namespace fourfold::cpu::FOURFOLD_CPU_LEVEL
