#include "cpu/parallel.h"

#include <torch/csrc/stable/c/shim.h>

#include "ops/aten.h"

namespace fourfold::cpu {

void parallel_for(int64_t begin, int64_t end, int64_t grain, void (*body)(void*, int64_t, int64_t), void* context) {
  struct Task {
    void (*body)(void*, int64_t, int64_t);
    void* context;
  } pair{body, context};
  check_call(
      torch_parallel_for(
          begin, end, grain,
          [](int64_t from, int64_t until, void* data) {
            const Task* task = static_cast<const Task*>(data);
            task->body(task->context, from, until);
          },
          &pair),
      "a parallel region");
}

int64_t torch_threads() {
  uint32_t threads = 1;
  check_call(torch_get_num_threads(&threads), "the number of threads");
  return threads;
}

}  // namespace fourfold::cpu
