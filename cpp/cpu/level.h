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
namespace fourfold::cpu {

// The number of built levels that have all kernels; later levels are the last of these plus bfloat16 kernels.
inline constexpr int full_levels = FOURFOLD_CPU_LEVEL_COUNT < 3 ? FOURFOLD_CPU_LEVEL_COUNT : 3;

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

}  // namespace fourfold::cpu

#if FOURFOLD_CPU_LEVEL_COUNT >= 3
#define FOURFOLD_CPU_KERNEL(name, signature)                                                                 \
  namespace level_default { signature name; } namespace level_avx2 { signature name; }                       \
  namespace level_avx512 { signature name; }                                                                 \
  inline constexpr Kernel<signature> name{{level_default::name, level_avx2::name, level_avx512::name}};
#elif FOURFOLD_CPU_LEVEL_COUNT == 2
#define FOURFOLD_CPU_KERNEL(name, signature)                                           \
  namespace level_default { signature name; } namespace level_avx2 { signature name; } \
  inline constexpr Kernel<signature> name{{level_default::name, level_avx2::name}};
#elif FOURFOLD_CPU_LEVEL_COUNT == 1
#define FOURFOLD_CPU_KERNEL(name, signature) \
  namespace level_default { signature name; } inline constexpr Kernel<signature> name{{level_default::name}};
#else
#error "FOURFOLD_CPU_LEVEL_COUNT is 1 to 5, of: default, avx2, avx512, avx512_bf16, amx"
#endif

#if FOURFOLD_CPU_LEVEL_COUNT == 5
#define FOURFOLD_BFLOAT16_KERNEL(name, signature)                                \
  namespace level_avx512_bf16 { signature name; } namespace level_amx { signature name; } \
  inline constexpr Bfloat16Kernel<signature> name{{level_avx512_bf16::name, level_amx::name}};
#elif FOURFOLD_CPU_LEVEL_COUNT == 4
#define FOURFOLD_BFLOAT16_KERNEL(name, signature) \
  namespace level_avx512_bf16 { signature name; } \
  inline constexpr Bfloat16Kernel<signature> name{{level_avx512_bf16::name}};
#else
#define FOURFOLD_BFLOAT16_KERNEL(name, signature) inline constexpr Bfloat16Kernel<signature> name{};
#endif
#endif
