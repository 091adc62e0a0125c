// A caching allocator for what compiled functions and loaded models compute. glibc returns large blocks to the system when
// they are freed, and the pages of each new block are cleared when they are first touched, which takes several times as
// long as most programs. Blocks of 128 KiB and more are therefore cached, like GPU memory in torch.
#pragma once

#include <c10/core/Allocator.h>

namespace fourfold::graph {

// Smaller blocks come from torch's allocator. Blocks unused for 30 seconds are freed when the next large block is
// allocated or freed.
c10::Allocator* allocator_of_results();

// While one lives, torch's operators on this thread allocate from the cache, too.
class OperatorsReuseMemory {
 public:
  OperatorsReuseMemory();
  ~OperatorsReuseMemory();
  OperatorsReuseMemory(const OperatorsReuseMemory&) = delete;
  OperatorsReuseMemory& operator=(const OperatorsReuseMemory&) = delete;
};

// Sets the size of the cache; the default is 0. The first size above replaces torch's CPU allocator by one that passes on
// to it what no graph allocates. Nothing is cached where another library has installed an allocator of its own.
void keep_at_most(size_t bytes);

// Frees the cached blocks and returns their size in bytes.
size_t release_kept_memory();

}  // namespace fourfold::graph
