#include "cpu/level.h"

#include <cstdlib>

#if FOURFOLD_CPU_LEVEL_COUNT == 3
#include <cpuid.h>
#endif

namespace fourfold::cpu {
namespace {

constexpr const char* names[] = {"default", "avx2", "avx512"};

#if FOURFOLD_CPU_LEVEL_COUNT == 3
// __builtin_cpu_supports knows f16c in GCC 11, but not in Clang 14.
bool has_f16c() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}
#endif

int best_supported() {
#if FOURFOLD_CPU_LEVEL_COUNT == 3
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
  if (!avx2) return 0;
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  return avx512 ? 2 : 1;
#else
  return 0;
#endif
}

LevelChoice choose() {
  const int best = best_supported();
  const char* asked = std::getenv("FOURFOLD_CPU_CAPABILITY");
  if (asked == nullptr || *asked == '\0') return {best, names[best], ""};
  for (int index = 0; index <= best; ++index) {
    if (std::string(asked) == names[index]) return {index, names[index], ""};
  }
  std::string usable = names[0];
  for (int index = 1; index <= best; ++index) usable += std::string(", ") + names[index];
  return {0, nullptr,
          "FOURFOLD_CPU_CAPABILITY is " + std::string(asked) + ", but this CPU and this build of fourfold have: " +
              usable + ". Set it to one of these, or unset it."};
}

}  // namespace

const LevelChoice& level_choice() {
  static const LevelChoice choice = choose();
  return choice;
}

}  // namespace fourfold::cpu
