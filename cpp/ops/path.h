// Which of a backend's ways a call takes, made a choice of the user's so that the ways can be measured.
#pragma once

#include <cstdint>

namespace fourfold {

// What operators are made to take instead of what they would choose: FOURFOLD_GPU_PATH in the environment. One that has no
// such kernels chooses as ever.
enum class Path {
  chosen,
  persistent,  // a sequence in one launch; a call that can't be is refused
  step,        // a launch or two a step, with fourfold's own product
  vendor,      // torch's products, for those of a step's rows that lie together, and layer by layer in mlp
  fused,       // mlp in one kernel; a network that does not fit is refused
};

Path forced_path();

// Whether torch's product takes the place of fourfold's own: where its multiply-adds are so many.
bool vendor_wins(int64_t work, int64_t from);

}  // namespace fourfold
