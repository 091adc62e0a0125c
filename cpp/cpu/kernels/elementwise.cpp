// Compiled for each operator of CMake's list, which defines FOURFOLD_FORMULA, FOURFOLD_FORMULA_FILE, and
// FOURFOLD_PARTS, the name of its kernels.
#include "cpu/kernels/elementwise.h"

#include "cpu/kernels/apply.h"
#include "cpu/kernels/math.h"

namespace fourfold::cpu {

FOURFOLD_CPU_KERNEL(FOURFOLD_PARTS, ElementwisePartsOf)

namespace FOURFOLD_CPU_LEVEL {

namespace formulas {
#include FOURFOLD_FORMULA_FILE
}

const ElementwiseParts& FOURFOLD_PARTS() {
  static constexpr ElementwiseParts parts = parts_of<formulas::FOURFOLD_FORMULA>();
  return parts;
}

}  // namespace FOURFOLD_CPU_LEVEL
}  // namespace fourfold::cpu
