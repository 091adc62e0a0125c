#include "ops/path.h"

#include <cstdlib>
#include <string>

#include "ops/check.h"

namespace fourfold {

// Reads the variable at each call, because benchmarks change it between calls.
Path forced_path() {
  const char* asked = std::getenv("FOURFOLD_GPU_PATH");
  if (asked == nullptr || *asked == '\0') return Path::chosen;
  const std::string name = asked;
  if (name == "block") return Path::block;
  if (name == "persistent") return Path::persistent;
  if (name == "step") return Path::step;
  if (name == "vendor") return Path::vendor;
  if (name == "fused") return Path::fused;
  fail("fourfold: expected FOURFOLD_GPU_PATH to be block, persistent, step, vendor or fused, but got ", name,
       "; set it to one of these, or unset it");
}

bool vendor_wins(int64_t work, int64_t from) {
  switch (forced_path()) {
    case Path::vendor: return true;
    case Path::step: return false;
    default: return work >= from;
  }
}

}  // namespace fourfold
