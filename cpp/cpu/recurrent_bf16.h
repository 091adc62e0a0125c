// The recurrent layers in bfloat16: weights, rows and gate gradients are factors of products that are summed up in
// float, which the cells and their states are computed in. input_size and hidden_size are even.
#pragma once

#include "cpu/level.h"
#include "ops/recurrent_job.h"

namespace fourfold::cpu {

using RecurrentKernel = void(const RecurrentForward& job);
using RecurrentBackwardKernel = void(const RecurrentBackward& job);
using RecurrentBytesKernel = int64_t(const RecurrentLayer& layer);
using RecurrentPrepackKernel = void(const RecurrentLayer& layer, void* prepacked);

FOURFOLD_BFLOAT16_KERNEL(lltm_bf16, RecurrentKernel)
FOURFOLD_BFLOAT16_KERNEL(lltm_bf16_backward, RecurrentBackwardKernel)
FOURFOLD_BFLOAT16_KERNEL(lltm_bf16_prepacked_bytes, RecurrentBytesKernel)
FOURFOLD_BFLOAT16_KERNEL(lltm_bf16_prepack, RecurrentPrepackKernel)
FOURFOLD_BFLOAT16_KERNEL(lstm_bf16, RecurrentKernel)
FOURFOLD_BFLOAT16_KERNEL(lstm_bf16_backward, RecurrentBackwardKernel)
FOURFOLD_BFLOAT16_KERNEL(lstm_bf16_prepacked_bytes, RecurrentBytesKernel)
FOURFOLD_BFLOAT16_KERNEL(lstm_bf16_prepack, RecurrentPrepackKernel)
FOURFOLD_BFLOAT16_KERNEL(gru_bf16, RecurrentKernel)
FOURFOLD_BFLOAT16_KERNEL(gru_bf16_backward, RecurrentBackwardKernel)
FOURFOLD_BFLOAT16_KERNEL(gru_bf16_prepacked_bytes, RecurrentBytesKernel)
FOURFOLD_BFLOAT16_KERNEL(gru_bf16_prepack, RecurrentPrepackKernel)

}  // namespace fourfold::cpu
