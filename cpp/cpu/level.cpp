#include "cpu/level.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "system/system.h"

#if FOURFOLD_BUILT_LEVELS > 1
#include <cpuid.h>
#endif

namespace fourfold::cpu {
namespace {

constexpr const char* names[] = {"default", "avx2", "avx512", "avx512_bf16", "amx"};
constexpr int last_full = 2;  // later levels are this one plus bfloat16 kernels
constexpr int amx = 4;

#if FOURFOLD_BUILT_LEVELS > 1
struct Cpuid {
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;

  explicit Cpuid(unsigned leaf, unsigned subleaf = 0) { __get_cpuid_count(leaf, subleaf, &eax, &ebx, &ecx, &edx); }
};

// __builtin_cpu_supports has f16c in GCC 11 but not in Clang 14, and doesn't have avx512bf16 and amx in all compilers.
bool has_f16c() { return (Cpuid(1).ecx & bit_F16C) != 0; }
bool has_avx512_bf16() { return (Cpuid(7, 1).eax & (1u << 5)) != 0; }

// The operating system must save the tile registers (XCR0).
bool has_amx() {
  constexpr unsigned tile = 1u << 24;
  constexpr unsigned bf16 = 1u << 22;
  if ((Cpuid(7).edx & (tile | bf16)) != (tile | bf16) || (Cpuid(1).ecx & bit_OSXSAVE) == 0) return false;
  unsigned low = 0;
  unsigned high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  constexpr unsigned tile_state = 3u << 17;
  return (low & tile_state) == tile_state;
}
#endif

int best_of_cpu() {
#if FOURFOLD_BUILT_LEVELS > 1
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
  if (!avx2) return 0;
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  if (!avx512) return 1;
  if (!has_avx512_bf16()) return 2;
  return has_amx() ? amx : 3;
#else
  return 0;
#endif
}

LevelChoice chosen(int level) { return {std::min(level, last_full), level - last_full - 1, names[level], ""}; }

// The levels of this build up to the best.
std::string list_of_built(const char* separator, int best) {
  std::string list;
  for (int level = 0; level <= best; ++level) {
    if (is_built(level)) list += (list.empty() ? "" : separator) + std::string(names[level]);
  }
  return list;
}

// Requests tiles only if they would be used, because the permission is permanent.
LevelChoice choose(const char* asked, int best_of_cpu, bool (*may_use_tiles)()) {
  const std::string_view wanted = asked == nullptr ? "" : asked;
  int best = best_of_cpu;
  const bool below = !wanted.empty() && wanted != names[amx];
  if (best == amx && is_built(amx) && !below && !may_use_tiles()) best = amx - 1;
  while (best >= 0 && !is_built(best)) --best;
  if (best < 0) {
    return {0, -1, nullptr,
            "fourfold was built for other processors than this one, whose CPU level is " +
                std::string(names[best_of_cpu]) + ": its kernels are for " + list_of_built(" and ", amx) +
                ". Build it on this processor, or for all with FOURFOLD_CPU_LEVELS=ON."};
  }
  if (wanted.empty()) return chosen(best);
  for (int level = 0; level <= best; ++level) {
    if (is_built(level) && wanted == names[level]) return chosen(level);
  }
  return {0, -1, nullptr,
          "FOURFOLD_CPU_CAPABILITY is " + std::string(wanted) + ", but this CPU and this build of fourfold have: " +
              list_of_built(", ", best) + ". Set it to one of these, or unset it."};
}

}  // namespace

const LevelChoice& level_choice() {
  static const LevelChoice choice = choose(std::getenv("FOURFOLD_CPU_CAPABILITY"), best_of_cpu(), system::request_tiles);
  return choice;
}

}  // namespace fourfold::cpu
