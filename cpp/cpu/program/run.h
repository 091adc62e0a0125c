// A program on the CPU.
#pragma once

#include "cpu/program/schedule.h"
#include "program/layout.h"

namespace fourfold::cpu {

// Writes the outputs, whose memory is given. `sizes` are the axes'.
void run(const program::Program& program, const Schedule& schedule, const std::vector<int64_t>& sizes,
         const program::Tensor* inputs, const program::Tensor* outputs);

}  // namespace fourfold::cpu
