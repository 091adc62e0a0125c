// Memory for kernels, in separate functions, so that the files of the CPU levels contain no code of std::string and
// exceptions.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fourfold::cpu {

// Allocates `count` elements of `size` bytes, aligned to 64; free with release(). Throws std::runtime_error on failure
// or overflow.
void* allocate(int64_t count, size_t size);
void release(void* memory);

// For std::unique_ptr.
struct Release {
  void operator()(void* memory) const;
};

// The size of a core's level 2 cache; 1 MB if unknown.
int64_t own_cache_bytes();

}  // namespace fourfold::cpu
