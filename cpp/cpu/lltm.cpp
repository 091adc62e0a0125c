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

int64_t lltm_packed_bytes(const RecurrentLayer& layer) {
  return layer.kind == Kind::float64 ? bytes_packed<Lltm, double>(layer) : bytes_packed<Lltm, float>(layer);
}

void lltm_pack(const RecurrentLayer& layer, void* packed) {
  layer.kind == Kind::float64 ? pack_layer<Lltm, double>(layer, packed) : pack_layer<Lltm, float>(layer, packed);
}

}  // namespace fourfold::cpu::FOURFOLD_CPU_LEVEL
