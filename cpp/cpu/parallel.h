// torch's own threads, for kernels that split their work themselves.
#pragma once

#include <cstdint>

namespace fourfold::cpu {

// Calls body(context, begin, end) on parts of [begin, end) of at least `grain` each; returns when all are done.
void parallel_for(int64_t begin, int64_t end, int64_t grain, void (*body)(void*, int64_t, int64_t), void* context);

}  // namespace fourfold::cpu
