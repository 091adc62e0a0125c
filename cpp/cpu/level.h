// Chooses the CPU level whose kernels run, once per process, from the CPU and FOURFOLD_CPU_CAPABILITY.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

namespace fourfold::cpu {

struct LevelChoice {
  int index = 0;               // 0 default, 1 avx2, 2 avx512 and its extensions
  int bfloat16 = -1;           // bfloat16 products: 0 avx512_bf16, 1 amx, -1 none
  const char* name = nullptr;  // null if the environment requests an unavailable level
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
// FOURFOLD_BUILT_LEVELS: the levels of this build, a bit for each: 1 default, 2 avx2, 4 avx512, 8 avx512_bf16, 16 amx.
namespace fourfold::cpu {

inline constexpr int full_levels = 3;  // have all kernels; later levels are the last of these plus bfloat16 kernels

// A kernel compiled for each level; calls dispatch to the chosen level. Null for levels that are not in this build.
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

}  // namespace fourfold::cpu

#if FOURFOLD_BUILT_LEVELS & 1
#define FOURFOLD_ON_DEFAULT(name) level_default::name
#else
#define FOURFOLD_ON_DEFAULT(name) nullptr
#endif
#if FOURFOLD_BUILT_LEVELS & 2
#define FOURFOLD_ON_AVX2(name) level_avx2::name
#else
#define FOURFOLD_ON_AVX2(name) nullptr
#endif
#if FOURFOLD_BUILT_LEVELS & 4
#define FOURFOLD_ON_AVX512(name) level_avx512::name
#else
#define FOURFOLD_ON_AVX512(name) nullptr
#endif
#if FOURFOLD_BUILT_LEVELS & 8
#define FOURFOLD_ON_AVX512_BF16(name) level_avx512_bf16::name
#else
#define FOURFOLD_ON_AVX512_BF16(name) nullptr
#endif
#if FOURFOLD_BUILT_LEVELS & 16
#define FOURFOLD_ON_AMX(name) level_amx::name
#else
#define FOURFOLD_ON_AMX(name) nullptr
#endif

#define FOURFOLD_CPU_KERNEL(name, signature)                                           \
  namespace level_default { signature name; } namespace level_avx2 { signature name; } \
  namespace level_avx512 { signature name; }                                           \
  inline constexpr Kernel<signature> name{{FOURFOLD_ON_DEFAULT(name), FOURFOLD_ON_AVX2(name), FOURFOLD_ON_AVX512(name)}};
#define FOURFOLD_BFLOAT16_KERNEL(name, signature)                                         \
  namespace level_avx512_bf16 { signature name; } namespace level_amx { signature name; } \
  inline constexpr Bfloat16Kernel<signature> name{{FOURFOLD_ON_AVX512_BF16(name), FOURFOLD_ON_AMX(name)}};
#endif
