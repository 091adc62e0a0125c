// Chooses the CPU level whose kernels run, once per process, from the CPU and FOURFOLD_CPU_CAPABILITY.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

namespace fourfold::cpu {

struct LevelChoice {
  int index = 0;               // 0 default, 1 avx2, 2 avx512 and its extensions
  int bfloat16 = -1;           // bfloat16 products: 0 avx512_bf16, 1 amx, -1 none
  const char* name = nullptr;  // null if there is no level, or not the requested one
  std::string error;
};

const LevelChoice& level_choice();

inline int level_index() {
  static const LevelChoice& choice = level_choice();
  if (choice.name == nullptr) throw std::runtime_error(choice.error);
  return choice.index;
}

}  // namespace fourfold::cpu

#ifdef FOURFOLD_CPU_LEVEL
// A level's own files define its kernels, independently of the other levels.
#define FOURFOLD_CPU_KERNEL(name, signature) namespace FOURFOLD_CPU_LEVEL { signature name; }
#define FOURFOLD_BFLOAT16_KERNEL(name, signature) FOURFOLD_CPU_KERNEL(name, signature)
#else
#ifndef FOURFOLD_BUILT_LEVELS  // a bit for each level of this build: 1 default, 2 avx2, 4 avx512, 8 avx512_bf16, 16 amx
#include "built_levels.h"      // written by CMake
#endif
namespace fourfold::cpu {

constexpr bool is_built(int level) { return ((FOURFOLD_BUILT_LEVELS) >> level & 1) != 0; }
static_assert(is_built(0) || is_built(1) || is_built(2), "at least one level has all kernels");
static_assert(is_built(2) || !(is_built(3) || is_built(4)), "the levels of bfloat16 kernels add to avx512");

inline constexpr int full_levels = 3;  // have all kernels; later levels are the last of these plus bfloat16 kernels

// A kernel compiled for each level; calls dispatch to the chosen level.
template <typename Signature>
struct Kernel {
  Signature* at[full_levels];

  template <typename... Arguments>
  decltype(auto) operator()(Arguments&&... arguments) const {
    return at[level_index()](std::forward<Arguments>(arguments)...);
  }
};

// The same for a bfloat16 kernel, which only some levels have.
template <typename Signature>
struct Bfloat16Kernel {
  Signature* at[2];

  static bool available() { return level_index() >= 0 && level_choice().bfloat16 >= 0; }

  template <typename... Arguments>
  decltype(auto) operator()(Arguments&&... arguments) const {
    return at[level_choice().bfloat16](std::forward<Arguments>(arguments)...);
  }
};

// A kernel's functions, from the level first on; null for levels that are not in this build.
template <typename OfLevels, int first, typename... Functions>
constexpr OfLevels kernel_of(Functions*... functions) {
  int level = first;
  return {{(is_built(level++) ? functions : nullptr)...}};
}

}  // namespace fourfold::cpu

#define FOURFOLD_CPU_KERNEL(name, signature)                                           \
  namespace level_default { signature name; } namespace level_avx2 { signature name; } \
  namespace level_avx512 { signature name; }                                           \
  inline constexpr auto name = kernel_of<Kernel<signature>, 0>(level_default::name, level_avx2::name, level_avx512::name);
#define FOURFOLD_BFLOAT16_KERNEL(name, signature)                                         \
  namespace level_avx512_bf16 { signature name; } namespace level_amx { signature name; } \
  inline constexpr auto name = kernel_of<Bfloat16Kernel<signature>, 3>(level_avx512_bf16::name, level_amx::name);
#endif
