// An elementwise operator's kernels: one source for each operator in CMake's list, which defines the formula's file.
#include "elementwise_kernels.h"

namespace fourfold {
#include FOURFOLD_FORMULA_FILE
}
