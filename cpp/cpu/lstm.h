#pragma once

#include "cpu/level.h"
#include "ops/recurrent_job.h"

namespace fourfold::cpu {

using LstmKernel = void(const RecurrentForward& job);
using LstmBackwardKernel = void(const RecurrentBackward& job);
using LstmBytesKernel = int64_t(const RecurrentLayer& layer);
using LstmPrepackKernel = void(const RecurrentLayer& layer, void* prepacked);

FOURFOLD_CPU_KERNEL(lstm, LstmKernel)
FOURFOLD_CPU_KERNEL(lstm_backward, LstmBackwardKernel)
FOURFOLD_CPU_KERNEL(lstm_prepacked_bytes, LstmBytesKernel)
FOURFOLD_CPU_KERNEL(lstm_prepack, LstmPrepackKernel)

}  // namespace fourfold::cpu
