// Shared by device code: storage types and their compute types, and the differences between NVIDIA's and AMD's
// languages that are not in language.cuh.
#pragma once

#include <cuda_runtime.h>
#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Half.h>

#include <cstdint>
#include <type_traits>

#include "language.cuh"
#include "ops/kind.h"

namespace fourfold::gpu {

using Half = c10::Half;
using BFloat16 = c10::BFloat16;

template <typename T>
using Compute = std::conditional_t<std::is_same_v<T, double>, double, float>;

// n values that one load or store moves, up to 16 bytes.
template <typename T, int n>
struct alignas(sizeof(T) * n) AlignedVector {
  T v[n];
};

template <typename T>
constexpr int vector_size = 16 / sizeof(T);

template <typename T>
struct Type {
  using type = T;
};

// Calls f(Type<T>()) with the floating-point type of `kind`.
template <typename F>
void visit_floating(Kind kind, const F& f) {
  switch (kind) {
    case Kind::float64: return f(Type<double>());
    case Kind::float32: return f(Type<float>());
    case Kind::bfloat16: return f(Type<BFloat16>());
    default: return f(Type<Half>());
  }
}

// Blocks of one launch pass values to each other without flags or fences: the memory is filled with `unwritten` words
// before the launch, each 16 bytes are stored once and as a whole, and a reader repeats its load until they are there. On
// AMD, whose stores of 16 bytes may be seen in parts, the last word is stored last, with release.
constexpr uint32_t unwritten = 0xffffffffu;
constexpr int unwritten_byte = 0xff;

// Of the values that a word can hold, only a NaN, or two of 16 bits, looks unwritten; they get another sign.
FOURFOLD_FN uint32_t as_written(uint32_t word) { return word == unwritten ? unwritten >> 1 : word; }

FOURFOLD_FN void store_words(void* to, const uint4& words) {
#if defined(USE_ROCM)
  auto* const at = static_cast<uint32_t*>(to);
  const auto store = [&](int k, uint32_t word, int order) { __hip_atomic_store(at + k, word, order, __HIP_MEMORY_SCOPE_AGENT); };
  store(0, words.x, __ATOMIC_RELAXED);
  store(1, words.y, __ATOMIC_RELAXED);
  store(2, words.z, __ATOMIC_RELAXED);
  store(3, words.w, __ATOMIC_RELEASE);
#else
  asm volatile(
      "{ .reg .b64 low, high; .reg .b128 all;\n\t"
      "mov.b64 low, {%1, %2}; mov.b64 high, {%3, %4}; mov.b128 all, {low, high};\n\t"
      "st.relaxed.gpu.global.b128 [%0], all; }" ::"l"(to), "r"(words.x), "r"(words.y), "r"(words.z), "r"(words.w)
      : "memory");
#endif
}

// Volatile, so that the compiler keeps each repetition.
FOURFOLD_FN uint4 load_words(const void* from) {
  uint4 words;
#if defined(USE_ROCM)
  const auto* const at = static_cast<const uint32_t*>(from);
  const auto load = [&](int k, int order) { return __hip_atomic_load(at + k, order, __HIP_MEMORY_SCOPE_AGENT); };
  words.w = load(3, __ATOMIC_ACQUIRE);
  words.x = load(0, __ATOMIC_RELAXED);
  words.y = load(1, __ATOMIC_RELAXED);
  words.z = load(2, __ATOMIC_RELAXED);
#else
  asm volatile(
      "{ .reg .b64 low, high; .reg .b128 all;\n\t"
      "ld.relaxed.gpu.global.b128 all, [%4];\n\t"
      "mov.b128 {low, high}, all; mov.b64 {%0, %1}, low; mov.b64 {%2, %3}, high; }"
      : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
      : "l"(from)
      : "memory");
#endif
  return words;
}

// Called while a load is repeated: on AMD, yields to other wavefronts of the compute unit.
FOURFOLD_FN void pause() {
#if defined(USE_ROCM)
  __builtin_amdgcn_s_sleep(1);
#endif
}

}  // namespace fourfold::gpu
