// The CPU's kernel table and registration of an elementwise operator. Compiled for each operator in CMake's list, which
// defines FOURFOLD_OPERATOR (its name), FOURFOLD_BODIES and FOURFOLD_BODIES_FILE, and FOURFOLD_PARTS (the name of its
// kernels).
#include FOURFOLD_BODIES_FILE

#include "cpu/elementwise.h"
#include "cpu/kernels/elementwise.h"
#include "ops/register_elementwise.h"
#include "ops/registration.h"

namespace fourfold {
namespace cpu {

FOURFOLD_CPU_KERNEL(FOURFOLD_PARTS, ElementwisePartsOf)

namespace {

constexpr ElementwiseKernels kernels{
    .forward = [](const Elementwise& job) { in_parts(job, FOURFOLD_PARTS().forward); },
    .backward = [](const Elementwise& job) { in_parts(job, FOURFOLD_PARTS().backward); },
};

}  // namespace
}  // namespace cpu
}  // namespace fourfold

FOURFOLD_KERNELS(CPU, m) {
  fourfold::register_elementwise<fourfold::FOURFOLD_BODIES, fourfold::cpu::kernels>(m, FOURFOLD_OPERATOR);
}
