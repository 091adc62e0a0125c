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

int64_t gru_prepacked_bytes(const RecurrentLayer& layer) {
  return layer.kind == Kind::float64 ? prepacked_bytes<Gru, double>(layer) : prepacked_bytes<Gru, float>(layer);
}

void gru_prepack(const RecurrentLayer& layer, void* prepacked) {
  layer.kind == Kind::float64 ? prepack_layer<Gru, double>(layer, prepacked) : prepack_layer<Gru, float>(layer, prepacked);
}

}  // namespace fourfold::cpu::FOURFOLD_CPU_LEVEL
