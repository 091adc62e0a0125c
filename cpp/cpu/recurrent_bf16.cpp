#include "cpu/recurrent_bf16.h"

#include "cpu/recurrent_backward.h"
#include "cpu/recurrent_forward.h"

namespace fourfold::cpu::FOURFOLD_CPU_LEVEL {

void lltm_bf16(const RecurrentForward& job) { run_forward<Lltm, Bfloat16Pair>(job); }
void lltm_bf16_backward(const RecurrentBackward& job) { run_backward<Lltm, Bfloat16Pair>(job); }
void lstm_bf16(const RecurrentForward& job) { run_forward<Lstm, Bfloat16Pair>(job); }
void lstm_bf16_backward(const RecurrentBackward& job) { run_backward<Lstm, Bfloat16Pair>(job); }
void gru_bf16(const RecurrentForward& job) { run_forward<Gru, Bfloat16Pair>(job); }
void gru_bf16_backward(const RecurrentBackward& job) { run_backward<Gru, Bfloat16Pair>(job); }

}  // namespace fourfold::cpu::FOURFOLD_CPU_LEVEL
