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

int64_t gru_packed_bytes(const RecurrentLayer& layer) {
  return layer.kind == Kind::float64 ? bytes_packed<Gru, double>(layer) : bytes_packed<Gru, float>(layer);
}

void gru_pack(const RecurrentLayer& layer, void* packed) {
  layer.kind == Kind::float64 ? pack_layer<Gru, double>(layer, packed) : pack_layer<Gru, float>(layer, packed);
}

}  // namespace fourfold::cpu::FOURFOLD_CPU_LEVEL
