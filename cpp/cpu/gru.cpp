#include "cpu/gru.h"

#include "cpu/recurrent_backward.h"
#include "cpu/recurrent_forward.h"

namespace fourfold::cpu::FOURFOLD_CPU_LEVEL {

void gru(const RecurrentForward& job) {
  job.layer.kind == Kind::float64 ? run_forward<Gru, double>(job) : run_forward<Gru, float>(job);
}

void gru_backward(const RecurrentBackward& job) {
  job.layer.kind == Kind::float64 ? run_backward<Gru, double>(job) : run_backward<Gru, float>(job);
}

}  // namespace fourfold::cpu::FOURFOLD_CPU_LEVEL
