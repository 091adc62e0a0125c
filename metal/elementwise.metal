// An elementwise operator's kernels: one source for each of CMake's list, which says what file the formula is in.
#include "elementwise_kernels.h"

namespace fourfold {
#include FOURFOLD_FORMULA_FILE
}
