#include "cpu/memory.h"

#include <cstdlib>
#include <stdexcept>
#include <string>

namespace fourfold::cpu {

void* allocate(int64_t count, size_t size) {
  constexpr int64_t line = 64;
  int64_t bytes = 0;
  const bool overflows = count < 0 || __builtin_mul_overflow(count, static_cast<int64_t>(size), &bytes) ||
                         __builtin_add_overflow(bytes, 2 * line, &bytes);
  void* memory = overflows ? nullptr : std::aligned_alloc(line, static_cast<size_t>(bytes / line * line));
  if (memory == nullptr) {
    throw std::runtime_error(
        "fourfold: expected memory for " + std::to_string(count) + " elements of " + std::to_string(size) +
        " bytes, which a call needs for itself, but the machine has none; give it fewer rows at once");
  }
  return memory;
}

}  // namespace fourfold::cpu
