#include "ops/lstm.h"

#include "cpu/recurrent.h"
#include "ops/backend.h"
#include "ops/registration.h"

namespace fourfold {
namespace cpu {

FOURFOLD_CPU_CELL(lstm)

}  // namespace cpu

constexpr RecurrentKernels lstm_on_cpu = cpu::recurrent_kernels<cpu::lstm_kernels, cpu::lstm_bfloat16_kernels>;

}  // namespace fourfold

FOURFOLD_KERNELS(CPU, m) {
  m.impl("lstm", FOURFOLD_BOX(lstm, lstm_on_cpu));
  m.impl("lstm_backward", FOURFOLD_BOX(lstm_backward, lstm_on_cpu));
  m.impl("lstm_prepack", FOURFOLD_BOX(lstm_prepack, lstm_on_cpu));
}
