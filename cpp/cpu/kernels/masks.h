// Converts between booleans, one byte each in memory, and the masks of vectors of float (lanes.h).
#pragma once

#include <cstring>

#include "cpu/kernels/lanes.h"

namespace fourfold::cpu::FOURFOLD_CPU_LEVEL {

#if defined(CPU_CAPABILITY_AVX512)
FOURFOLD_FN void store_mask(uint8_t* to, Mask mask, int64_t count) {
  _mm_mask_storeu_epi8(to, first_lanes(count), _mm_maskz_set1_epi8(mask, 1));
}
FOURFOLD_FN Mask load_mask(const uint8_t* from, int64_t count) {
  const __m128i bytes = _mm_maskz_loadu_epi8(first_lanes(count), from);
  return _mm_test_epi8_mask(bytes, bytes);
}
FOURFOLD_FN Mask all_or_none(bool all) { return all ? 0xffff : 0; }
FOURFOLD_FN Mask opposite(Mask mask) { return static_cast<Mask>(~mask); }
#elif defined(CPU_CAPABILITY_AVX2)
FOURFOLD_FN void store_mask(uint8_t* to, const Mask& mask, int64_t count) {
  const __m256i lanes = _mm256_castps_si256(mask);
  const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(lanes), _mm256_extracti128_si256(lanes, 1));
  const __m128i bytes = _mm_and_si128(_mm_packs_epi16(words, words), _mm_set1_epi8(1));
  const int64_t bits = _mm_cvtsi128_si64(bytes);
  if (count == Floats::size()) {  // a constant size is one instruction, a variable one is a call
    std::memcpy(to, &bits, sizeof bits);
  } else {
    std::memcpy(to, &bits, static_cast<size_t>(count));
  }
}
FOURFOLD_FN Mask load_mask(const uint8_t* from, int64_t count) {
  int64_t bits = 0;
  if (count == Floats::size()) {
    std::memcpy(&bits, from, sizeof bits);
  } else {
    std::memcpy(&bits, from, static_cast<size_t>(count));
  }
  const __m256i lanes = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(bits));
  return _mm256_castsi256_ps(_mm256_cmpgt_epi32(lanes, _mm256_setzero_si256()));
}
FOURFOLD_FN Mask all_or_none(bool all) { return _mm256_castsi256_ps(_mm256_set1_epi32(all ? -1 : 0)); }
FOURFOLD_FN Mask opposite(const Mask& mask) { return mask ^ all_or_none(true); }
#else
FOURFOLD_FN void store_mask(uint8_t* to, const Mask& mask, int64_t count) {
  int32_t lanes[Floats::size()];
  bits_of(mask).store(lanes);
  for (int64_t k = 0; k < count; ++k) to[k] = lanes[k] != 0;
}
FOURFOLD_FN Mask load_mask(const uint8_t* from, int64_t count) {
  int32_t lanes[Floats::size()] = {};
  for (int64_t k = 0; k < count; ++k) lanes[k] = from[k] != 0 ? -1 : 0;
  return float_of(Ints::loadu(lanes));
}
FOURFOLD_FN Mask all_or_none(bool all) { return float_of(Ints(all ? -1 : 0)); }
FOURFOLD_FN Mask opposite(const Mask& mask) { return float_of(bits_of(mask) ^ Ints(-1)); }
#endif

}  // namespace fourfold::cpu::FOURFOLD_CPU_LEVEL
