#pragma once

#include "cpu/level.h"
#include "ops/recurrent_job.h"

namespace fourfold::cpu {

using LstmKernel = void(const RecurrentForward& job);
using LstmBackwardKernel = void(const RecurrentBackward& job);

FOURFOLD_CPU_KERNEL(lstm, LstmKernel)
FOURFOLD_CPU_KERNEL(lstm_backward, LstmBackwardKernel)

}  // namespace fourfold::cpu
