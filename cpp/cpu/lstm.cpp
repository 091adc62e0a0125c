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

int64_t lstm_prepacked_bytes(const RecurrentLayer& layer) {
  return layer.kind == Kind::float64 ? prepacked_bytes<Lstm, double>(layer) : prepacked_bytes<Lstm, float>(layer);
}

void lstm_prepack(const RecurrentLayer& layer, void* prepacked) {
  layer.kind == Kind::float64 ? prepack_layer<Lstm, double>(layer, prepacked) : prepack_layer<Lstm, float>(layer, prepacked);
}

}  // namespace fourfold::cpu::FOURFOLD_CPU_LEVEL
