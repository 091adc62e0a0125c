// Packs matrices into panels (tile.h).
#pragma once

#include "cpu/memory.h"

#include "cpu/kernels/tile.h"
#include "cpu/kernels/transpose.h"

namespace fourfold::cpu::FOURFOLD_CPU_LEVEL {

// Temporary memory of a call, aligned for vector loads.
template <typename S>
class Scratch {
 public:
  explicit Scratch(int64_t count) : data_(static_cast<S*>(allocate(count, sizeof(S)))) {}
  ~Scratch() { release(data_); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  S* get() const { return data_; }

 private:
  S* data_;
};

#if defined(CPU_CAPABILITY_AVX512)
inline void transpose_square(const float* from, int64_t leading_dim, float* to, int64_t to_step) {
  transpose_16(from, leading_dim * 4, to, to_step);
}
#elif defined(CPU_CAPABILITY_AVX2)
inline void transpose_square(const float* from, int64_t leading_dim, float* to, int64_t to_step) {
  transpose_8(from, leading_dim, to, to_step);
}
#endif

template <typename S>
void transpose_square(const S* from, int64_t leading_dim, S* to, int64_t to_step) {
  for (int64_t lane = 0; lane < lanes<S>; ++lane) {
    for (int64_t k = 0; k < lanes<S>; ++k) to[k * to_step + lane] = from[lane * leading_dim + k];
  }
}

// Packs one vector of a panel's columns, which are rows of `from`: to[k * to_step + lane] = factor k of row `lane`.
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

// The same for a matrix whose rows are the factors: to[k * to_step + lane] = column `lane` of row k.
template <typename S>
void pack_columns(const S* from, int64_t leading_dim, int64_t depth, int64_t count, S* to, int64_t to_step) {
  for (int64_t k = 0; k < depth; ++k) {
    store_lanes(to + k * to_step, load_lanes(from + k * leading_dim, count), lanes<S>);
  }
}

#if defined(__AVX512BF16__)
// Pads an odd depth with zero.
inline void pack_rows(
    const c10::BFloat16* from, int64_t leading_dim, int64_t depth, int64_t count, Bfloat16Pair* to, int64_t to_step) {
  int64_t k = 0;
  if (count == 16) {
    for (; k + 32 <= depth; k += 32) {
      transpose_16(from + k, leading_dim * 2, reinterpret_cast<float*>(to + k / 2 * to_step), to_step);
    }
  }
  for (; k < depth; k += 2) {
    for (int64_t lane = 0; lane < 16; ++lane) {
      const c10::BFloat16* at = from + lane * leading_dim + k;
      const uint16_t second = lane < count && k + 1 < depth ? at[1].x : uint16_t(0);
      to[k / 2 * to_step + lane] = {lane < count ? at[0].x : uint16_t(0), second};
    }
  }
}

inline void pack_columns(
    const c10::BFloat16* from, int64_t leading_dim, int64_t depth, int64_t count, Bfloat16Pair* to, int64_t to_step) {
  for (int64_t k = 0; k < depth; k += 2) {
    store_pairs(to + k / 2 * to_step, from + k * leading_dim, from + (k + 1) * leading_dim, count);
  }
}
#endif

}  // namespace fourfold::cpu::FOURFOLD_CPU_LEVEL
