#include "cpu/lltm.h"

#include "cpu/lltm_formula.h"
#include "cpu/recurrent.h"

namespace fourfold::cpu::FOURFOLD_CPU_LEVEL {

void lltm(const RecurrentForward& job) { run_loop<ForwardLoop, Lltm>(job); }

void lltm_backward(const RecurrentBackward& job) { run_loop<BackwardLoop, Lltm>(job); }

}  // namespace fourfold::cpu::FOURFOLD_CPU_LEVEL
