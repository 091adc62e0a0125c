#include "cpu/recurrent_bf16.h"

#include "cpu/recurrent_backward.h"
#include "cpu/recurrent_forward.h"

namespace fourfold::cpu::FOURFOLD_CPU_LEVEL {

void lltm_bf16(const RecurrentForward& job) { run_forward<Lltm, Bfloat16Pair>(job); }
void lltm_bf16_backward(const RecurrentBackward& job) { run_backward<Lltm, Bfloat16Pair>(job); }
int64_t lltm_bf16_prepacked_bytes(const RecurrentLayer& layer) { return prepacked_bytes<Lltm, Bfloat16Pair>(layer); }
void lltm_bf16_prepack(const RecurrentLayer& layer, void* prepacked) { prepack_layer<Lltm, Bfloat16Pair>(layer, prepacked); }

void lstm_bf16(const RecurrentForward& job) { run_forward<Lstm, Bfloat16Pair>(job); }
void lstm_bf16_backward(const RecurrentBackward& job) { run_backward<Lstm, Bfloat16Pair>(job); }
int64_t lstm_bf16_prepacked_bytes(const RecurrentLayer& layer) { return prepacked_bytes<Lstm, Bfloat16Pair>(layer); }
void lstm_bf16_prepack(const RecurrentLayer& layer, void* prepacked) { prepack_layer<Lstm, Bfloat16Pair>(layer, prepacked); }

void gru_bf16(const RecurrentForward& job) { run_forward<Gru, Bfloat16Pair>(job); }
void gru_bf16_backward(const RecurrentBackward& job) { run_backward<Gru, Bfloat16Pair>(job); }
int64_t gru_bf16_prepacked_bytes(const RecurrentLayer& layer) { return prepacked_bytes<Gru, Bfloat16Pair>(layer); }
void gru_bf16_prepack(const RecurrentLayer& layer, void* prepacked) { prepack_layer<Gru, Bfloat16Pair>(layer, prepacked); }

}  // namespace fourfold::cpu::FOURFOLD_CPU_LEVEL
