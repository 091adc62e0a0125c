#pragma once

#include "cpu/level.h"
#include "ops/recurrent_job.h"

namespace fourfold::cpu {

using LstmKernel = void(const RecurrentForward& job);
using LstmBackwardKernel = void(const RecurrentBackward& job);
using LstmBytesKernel = int64_t(const RecurrentLayer& layer);
using LstmPackKernel = void(const RecurrentLayer& layer, void* packed);

FOURFOLD_CPU_KERNEL(lstm, LstmKernel)
FOURFOLD_CPU_KERNEL(lstm_backward, LstmBackwardKernel)
FOURFOLD_CPU_KERNEL(lstm_packed_bytes, LstmBytesKernel)
FOURFOLD_CPU_KERNEL(lstm_pack, LstmPackKernel)

}  // namespace fourfold::cpu
