// Memory for kernels: a function of its own, so that no level's files hold std's strings and exceptions.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fourfold::cpu {

// `count` elements of so many bytes, at a multiple of 64, for release(). Throws a sentence where the machine has no such
// memory, or no address for it.
void* allocate(int64_t count, size_t size);
void release(void* memory);

// A core's level 2 cache; 1 MB where the system does not say.
int64_t own_cache_bytes();

}  // namespace fourfold::cpu
