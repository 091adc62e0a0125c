// Lets users choose among a backend's implementations of an operator, to measure each of them.
#pragma once

#include <cstdint>

namespace fourfold {

// The implementation that the environment variable FOURFOLD_GPU_PATH forces. Operators without it choose as by default.
enum class Path {
  chosen,
  block,       // whole sequences of a few rows in a block; an error if that isn't possible
  persistent,  // a whole sequence in one or two launches; an error if that isn't possible
  step,        // one or two launches per step, with fourfold's own product
  vendor,      // torch's products: one per step in recurrent layers, one per layer in mlp
  fused,       // mlp in one kernel; an error for networks that don't fit
};

Path forced_path();

// Whether to use torch's product instead of fourfold's own: by default from `from` multiply-adds on.
bool vendor_wins(int64_t work, int64_t from);

}  // namespace fourfold
