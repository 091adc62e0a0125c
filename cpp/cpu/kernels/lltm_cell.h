#pragma once

#include "cpu/level.h"
#include "ops/lltm_cell_job.h"

namespace fourfold::cpu {

using LltmCellKernel = void(const LltmCellForward& job);
using LltmCellBackwardKernel = void(const LltmCellBackward& job);

FOURFOLD_CPU_KERNEL(lltm_cell, LltmCellKernel)
FOURFOLD_CPU_KERNEL(lltm_cell_backward, LltmCellBackwardKernel)

}  // namespace fourfold::cpu
