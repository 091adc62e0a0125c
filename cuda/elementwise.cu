// The GPU's kernel table and registration of an elementwise operator. Compiled for each operator in CMake's list, which
// defines FOURFOLD_OPERATOR (its name), FOURFOLD_BODIES and FOURFOLD_BODIES_FILE, and FOURFOLD_FORMULA and
// FOURFOLD_FORMULA_FILE.
#include FOURFOLD_BODIES_FILE

#include "elementwise.cuh"
#include "math.cuh"
#include "ops/register_elementwise.h"
#include "ops/registration.h"

namespace fourfold::gpu {
namespace formulas {
#include FOURFOLD_FORMULA_FILE
}

namespace {

constexpr ElementwiseKernels elementwise_kernels = kernels_of<formulas::FOURFOLD_FORMULA>();

}  // namespace
}  // namespace fourfold::gpu

FOURFOLD_KERNELS(CUDA, m) {
  fourfold::register_elementwise<fourfold::FOURFOLD_BODIES, fourfold::gpu::elementwise_kernels>(m, FOURFOLD_OPERATOR);
}
