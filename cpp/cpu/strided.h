// The plain types in which operators hand memory to kernels.
#pragma once

#include <cstdint>

namespace fourfold::cpu {

enum class Kind { boolean, uint8, int8, int16, int32, int64, float16, bfloat16, float32, float64 };

// Elements at data, data + stride, …; the stride counts elements and is 0 for one value broadcast.
struct Strided {
  const void* data;
  int64_t stride;
};

}  // namespace fourfold::cpu
