// The factors of products: single values for float and double; for bfloat16, pairs of adjacent values, whose two
// products one instruction adds to a float.
#pragma once

#include <cstring>

#include "cpu/kernels/vec.h"

namespace fourfold::cpu::FOURFOLD_CPU_LEVEL {

template <typename S>
inline constexpr int64_t lanes = Vectorized<S>::size();

// Memory: the tensors' type. Sum: the type of accumulators and of the cells' computation. per_factor: values of Memory
// in one factor. A vector has as many factors as a vector of Sum has lanes.
template <typename E>
struct Factor {
  using Memory = E;
  using Sum = E;
  using Vector = Vectorized<E>;
  static constexpr int64_t per_factor = 1;

  static FOURFOLD_FN Vector load(const E* from) { return Vector::loadu(from); }
  static FOURFOLD_FN Vector load_some(const E* from, int64_t count) { return Vector::loadu(from, count); }
  static FOURFOLD_FN Vector broadcast(const E* from) { return Vector(*from); }
  static FOURFOLD_FN Vectorized<E> add_product(const Vector& x, const Vector& y, const Vectorized<E>& sum) {
    return at::vec::fmadd(x, y, sum);
  }
};

struct Bfloat16Pair {
  uint16_t low;
  uint16_t high;
};

template <typename E>
using Memory = typename Factor<E>::Memory;
template <typename E>
using Sum = typename Factor<E>::Sum;

// The number of factors in a row of `values` values.
template <typename E>
int64_t factors(int64_t values) {
  return (values + Factor<E>::per_factor - 1) / Factor<E>::per_factor;
}

// The factors of tensor memory from value `at` on, which must be even for pairs.
template <typename E>
const E* factors_at(const void* memory, int64_t at) {
  return reinterpret_cast<const E*>(static_cast<const Memory<E>*>(memory) + at);
}

template <typename E>
const E* const* factor_rows(const Memory<E>* const* rows) {
  return reinterpret_cast<const E* const*>(rows);
}

#if defined(__AVX512BF16__)
template <>
struct Factor<Bfloat16Pair> {
  using Memory = c10::BFloat16;
  using Sum = float;
  using Vector = __m512bh;
  static constexpr int64_t per_factor = 2;

  static FOURFOLD_FN Vector load(const Bfloat16Pair* from) {
    return reinterpret_cast<Vector>(_mm512_loadu_si512(from));
  }
  static FOURFOLD_FN Vector load_some(const Bfloat16Pair* from, int64_t count) {
    return reinterpret_cast<Vector>(_mm512_maskz_loadu_epi32(first_lanes(count), from));
  }
  static FOURFOLD_FN Vector broadcast(const Bfloat16Pair* from) {
    int bits;
    std::memcpy(&bits, from, sizeof bits);
    return reinterpret_cast<Vector>(_mm512_set1_epi32(bits));
  }
  static FOURFOLD_FN Vectorized<float> add_product(const Vector& x, const Vector& y, const Vectorized<float>& sum) {
    return _mm512_dpbf16_ps(sum, x, y);
  }
};
#endif

// Loads `count` values as a vector of the accumulator's type; other lanes are zero.
template <typename S>
FOURFOLD_FN Vectorized<S> load_lanes(const S* from, int64_t count) {
  return count == lanes<S> ? Vectorized<S>::loadu(from) : Vectorized<S>::loadu(from, count);
}

template <typename S>
FOURFOLD_FN void store_lanes(S* to, const Vectorized<S>& v, int64_t count) {
  if (count == lanes<S>) {
    v.store(to);
  } else {
    v.store(to, static_cast<int>(count));
  }
}

#if defined(__AVX512BF16__)
FOURFOLD_FN Vectorized<float> load_lanes(const c10::BFloat16* from, int64_t count) {
  const __m256i bits = _mm256_maskz_loadu_epi16(first_lanes(count), from);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}

FOURFOLD_FN void store_lanes(c10::BFloat16* to, const Vectorized<float>& v, int64_t count) {
  __m256i rounded = reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(v));
  // The instruction flushes subnormal numbers to zero, which matter: a gate of 1e-38 may be multiplied by a state of
  // 1e38.
  constexpr int subnormal = 0x20;
  if (const __mmask16 tiny = _mm512_fpclass_ps_mask(v, subnormal); __builtin_expect(tiny != 0, 0)) {
    const __m512i bits = _mm512_castps_si512(v);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i sum = _mm512_add_epi32(_mm512_add_epi32(bits, odd), _mm512_set1_epi32(0x7fff));
    rounded = _mm256_mask_blend_epi16(tiny, rounded, _mm512_cvtepi32_epi16(_mm512_srli_epi32(sum, 16)));
  }
  _mm256_mask_storeu_epi16(to, first_lanes(count), rounded);
}

// Pairs of two rows' values: (low[lane], high[lane]), or (low[lane], 0) if high is null.
FOURFOLD_FN __m512i pairs_of(const c10::BFloat16* low, const c10::BFloat16* high, int64_t count) {
  const __m512i first = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(first_lanes(count), low));
  if (high == nullptr) return first;
  const __m512i second = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(first_lanes(count), high));
  return _mm512_or_si512(first, _mm512_slli_epi32(second, 16));
}

FOURFOLD_FN void store_pairs(Bfloat16Pair* to, const c10::BFloat16* low, const c10::BFloat16* high, int64_t count) {
  _mm512_storeu_si512(to, pairs_of(low, high, count));
}
#endif

// The number of lanes from `first` on that are below `size`.
template <typename S>
int64_t lanes_left(int64_t size, int64_t first) {
  return size - first < lanes<S> ? size - first : lanes<S>;
}

}  // namespace fourfold::cpu::FOURFOLD_CPU_LEVEL
