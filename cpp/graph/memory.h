// A caching allocator for the results of compiled functions. glibc returns blocks of 32 MiB and more to the system as
// soon as they are freed, and the pages of each new block are cleared when they are first touched, which takes several
// times as long as most programs. Blocks of that size are therefore cached, like GPU memory in torch.
#pragma once

#include <c10/core/Allocator.h>

namespace fourfold::graph {

// Smaller blocks come from torch's allocator. Blocks unused for 30 seconds are freed when the next large block is
// allocated or freed.
c10::Allocator* allocator_of_results();

// Sets the size of the cache; the default is 0.
void keep_at_most(size_t bytes);

// Frees the cached blocks and returns their size in bytes.
size_t release_kept_memory();

}  // namespace fourfold::graph
