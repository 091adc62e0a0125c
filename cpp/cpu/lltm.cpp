#include "cpu/lltm.h"

#include "cpu/recurrent_backward.h"
#include "cpu/recurrent_forward.h"

namespace fourfold::cpu::FOURFOLD_CPU_LEVEL {

void lltm(const RecurrentForward& job) {
  job.layer.kind == Kind::float64 ? run_forward<Lltm, double>(job) : run_forward<Lltm, float>(job);
}

void lltm_backward(const RecurrentBackward& job) {
  job.layer.kind == Kind::float64 ? run_backward<Lltm, double>(job) : run_backward<Lltm, float>(job);
}

}  // namespace fourfold::cpu::FOURFOLD_CPU_LEVEL
