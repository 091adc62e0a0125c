#pragma once

#include "cpu/level.h"
#include "cpu/recurrent_job.h"

namespace fourfold::cpu {

using LltmForward = void(const RecurrentForward& job);
using LltmBackward = void(const RecurrentBackward& job);

FOURFOLD_CPU_KERNEL(lltm, LltmForward)
FOURFOLD_CPU_KERNEL(lltm_backward, LltmBackward)

}  // namespace fourfold::cpu
