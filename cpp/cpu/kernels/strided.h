// Elements at equal distances in memory, as operators hand them to the CPU's elementwise kernels.
#pragma once

#include "ops/kind.h"

namespace fourfold::cpu {

// Elements at data, data + stride, …; the stride counts elements and is 0 for one value broadcast.
struct Strided {
  const void* data;
  int64_t stride;
};

}  // namespace fourfold::cpu
