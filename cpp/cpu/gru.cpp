#include "ops/gru.h"

#include "cpu/recurrent.h"
#include "ops/backend.h"
#include "ops/registration.h"

namespace fourfold {
namespace cpu {

FOURFOLD_CPU_CELL(gru)

}  // namespace cpu

constexpr RecurrentKernels gru_on_cpu = cpu::recurrent_kernels<cpu::gru_kernels, cpu::gru_bfloat16_kernels>;

}  // namespace fourfold

FOURFOLD_KERNELS(CPU, m) {
  m.impl("gru", FOURFOLD_BOX(gru, gru_on_cpu));
  m.impl("gru_backward", FOURFOLD_BOX(gru_backward, gru_on_cpu));
  m.impl("gru_prepack", FOURFOLD_BOX(gru_prepack, gru_on_cpu));
}
