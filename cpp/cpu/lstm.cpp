#include "cpu/lstm.h"

#include "cpu/recurrent_backward.h"
#include "cpu/recurrent_forward.h"

namespace fourfold::cpu::FOURFOLD_CPU_LEVEL {

void lstm(const RecurrentForward& job) {
  job.layer.kind == Kind::float64 ? run_forward<Lstm, double>(job) : run_forward<Lstm, float>(job);
}

void lstm_backward(const RecurrentBackward& job) {
  job.layer.kind == Kind::float64 ? run_backward<Lstm, double>(job) : run_backward<Lstm, float>(job);
}

}  // namespace fourfold::cpu::FOURFOLD_CPU_LEVEL
