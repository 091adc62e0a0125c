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

int64_t lstm_packed_bytes(const RecurrentLayer& layer) {
  return layer.kind == Kind::float64 ? bytes_packed<Lstm, double>(layer) : bytes_packed<Lstm, float>(layer);
}

void lstm_pack(const RecurrentLayer& layer, void* packed) {
  layer.kind == Kind::float64 ? pack_layer<Lstm, double>(layer, packed) : pack_layer<Lstm, float>(layer, packed);
}

}  // namespace fourfold::cpu::FOURFOLD_CPU_LEVEL
