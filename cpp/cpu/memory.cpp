#include "cpu/memory.h"

#include <stdexcept>
#include <string>

#include "system/system.h"

namespace fourfold::cpu {

void* allocate(int64_t count, size_t size) {
  constexpr int64_t line = 64;
  int64_t bytes = 0;
  const bool overflows = count < 0 || __builtin_mul_overflow(count, static_cast<int64_t>(size), &bytes) ||
                         __builtin_add_overflow(bytes, 2 * line, &bytes);
  void* memory = overflows ? nullptr : system::allocate_aligned(line, static_cast<size_t>(bytes / line * line));
  if (memory == nullptr) {
    throw std::runtime_error(
        "fourfold: expected memory for " + std::to_string(count) + " elements of " + std::to_string(size) +
        " bytes, which a call needs for itself, but the machine has none; give it fewer rows at once");
  }
  return memory;
}

void release(void* memory) { system::release_aligned(memory); }

void Release::operator()(void* memory) const { release(memory); }

int64_t own_cache_bytes() {
  static const int64_t bytes = [] {
    const int64_t found = system::level_2_cache_bytes();
    return found > 0 ? found : int64_t{1} << 20;
  }();
  return bytes;
}

}  // namespace fourfold::cpu
