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

int64_t lltm_prepacked_bytes(const RecurrentLayer& layer) {
  return layer.kind == Kind::float64 ? prepacked_bytes<Lltm, double>(layer) : prepacked_bytes<Lltm, float>(layer);
}

void lltm_prepack(const RecurrentLayer& layer, void* prepacked) {
  layer.kind == Kind::float64 ? prepack_layer<Lltm, double>(layer, prepacked) : prepack_layer<Lltm, float>(layer, prepacked);
}

}  // namespace fourfold::cpu::FOURFOLD_CPU_LEVEL
