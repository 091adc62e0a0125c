// The CPU's tables of recurrent layers' kernels.
#pragma once

#include "cpu/gru.h"
#include "cpu/lltm.h"
#include "cpu/lstm.h"
#include "cpu/recurrent_bf16.h"
#include "ops/recurrent.h"

namespace fourfold {

// bfloat16 is multiplied by pairs.
inline bool computes_on_cpu(ScalarType dtype, const RecurrentShape& shape) {
  return dtype == ScalarType::BFloat16 && shape.input_size % 2 == 0 && shape.hidden_size % 2 == 0 &&
         cpu::Bfloat16Kernel<cpu::RecurrentKernel>::available();
}

template <
    const auto& forward, const auto& backward, const auto& prepacked_bytes, const auto& prepack, const auto& bf16,
    const auto& bf16_backward, const auto& bf16_prepacked_bytes, const auto& bf16_prepack>
inline constexpr RecurrentKernels recurrent_on_cpu{
    computes_on_cpu,
    [](const RecurrentForward& job) { job.layer.kind == Kind::bfloat16 ? bf16(job) : forward(job); },
    [](const RecurrentBackward& job) { job.layer.kind == Kind::bfloat16 ? bf16_backward(job) : backward(job); },
    [](const RecurrentLayer& layer) {
      return layer.kind == Kind::bfloat16 ? bf16_prepacked_bytes(layer) : prepacked_bytes(layer);
    },
    [](const RecurrentLayer& layer, void* prepacked) {
      layer.kind == Kind::bfloat16 ? bf16_prepack(layer, prepacked) : prepack(layer, prepacked);
    },
    [] { return cpu::level_choice().name; },
};

inline constexpr RecurrentKernels gru_on_cpu =
    recurrent_on_cpu<cpu::gru, cpu::gru_backward, cpu::gru_prepacked_bytes, cpu::gru_prepack, cpu::gru_bf16,
                     cpu::gru_bf16_backward, cpu::gru_bf16_prepacked_bytes, cpu::gru_bf16_prepack>;
inline constexpr RecurrentKernels lltm_on_cpu =
    recurrent_on_cpu<cpu::lltm, cpu::lltm_backward, cpu::lltm_prepacked_bytes, cpu::lltm_prepack, cpu::lltm_bf16,
                     cpu::lltm_bf16_backward, cpu::lltm_bf16_prepacked_bytes, cpu::lltm_bf16_prepack>;
inline constexpr RecurrentKernels lstm_on_cpu =
    recurrent_on_cpu<cpu::lstm, cpu::lstm_backward, cpu::lstm_prepacked_bytes, cpu::lstm_prepack, cpu::lstm_bf16,
                     cpu::lstm_bf16_backward, cpu::lstm_bf16_prepacked_bytes, cpu::lstm_bf16_prepack>;

}  // namespace fourfold
