// Memory of the results of compiled functions. glibc gives blocks of 32 MiB and more back to the system as soon as they are freed,
// and clears the pages of each new one as they are touched, which takes several times as long as most programs. So blocks of that
// size are kept for the next result, as torch keeps those of GPUs.
#pragma once

#include <c10/core/Allocator.h>

namespace fourfold::model {

// Gives smaller blocks as torch's allocator does. What was kept for half a minute is freed when the next large block is allocated
// or freed.
c10::Allocator* allocator_of_results();

// From now on; at first nothing is kept.
void keep_at_most(size_t bytes);

// Gives what is kept back to the system, and says how many bytes it was.
size_t release_kept_memory();

}  // namespace fourfold::model
