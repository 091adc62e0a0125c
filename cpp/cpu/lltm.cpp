#include "ops/lltm.h"

#include "cpu/recurrent.h"
#include "ops/backend.h"
#include "ops/registration.h"

namespace fourfold {
namespace cpu {

FOURFOLD_CPU_CELL(lltm)

}  // namespace cpu

constexpr RecurrentKernels lltm_on_cpu = cpu::recurrent_kernels<cpu::lltm_kernels, cpu::lltm_bfloat16_kernels>;

}  // namespace fourfold

FOURFOLD_KERNELS(CPU, m) {
  m.impl("lltm", FOURFOLD_BOX(lltm, lltm_on_cpu));
  m.impl("lltm_backward", FOURFOLD_BOX(lltm_backward, lltm_on_cpu));
  m.impl("lltm_prepack", FOURFOLD_BOX(lltm_prepack, lltm_on_cpu));
}
