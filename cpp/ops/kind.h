// The plain types in which an operator hands memory to any backend's kernels. Nothing of torch, so that files which are
// compiled once per CPU level may include it.
#pragma once

#include <cstdint>

namespace fourfold {

enum class Kind { boolean, uint8, int8, int16, int32, int64, float16, bfloat16, float32, float64 };

// A device as torch numbers it: where a call's tensors lie, and where its kernel runs.
struct Place {
  int32_t type;
  int32_t index;
};

}  // namespace fourfold
