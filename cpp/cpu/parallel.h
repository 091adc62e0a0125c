// torch's thread pool, for kernels that split their work themselves.
#pragma once

#include <cstdint>

namespace fourfold::cpu {

// Calls body(context, begin, end) on parts of [begin, end) of at least `grain` each; returns when all are done.
void parallel_for(int64_t begin, int64_t end, int64_t grain, void (*body)(void*, int64_t, int64_t), void* context);

// The number of threads that torch may use.
int64_t torch_threads();

// The same for a callable f(begin, end) over [0, count). static, so that the linker can't share one level's copy with
// another.
template <typename F>
static void parallel(int64_t count, int64_t grain, const F& f) {
  parallel_for(
      0, count, grain, [](void* context, int64_t begin, int64_t end) { (*static_cast<const F*>(context))(begin, end); },
      const_cast<void*>(static_cast<const void*>(&f)));
}

}  // namespace fourfold::cpu
