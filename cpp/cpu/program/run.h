// A program on the CPU.
#pragma once

#include "cpu/program/schedule.h"
#include "program/layout.h"

namespace fourfold::cpu {

// Writes the outputs, whose memory is given. `sizes` are the axes'.
void run(const program::Program& program, const Schedule& schedule, const std::vector<int64_t>& sizes,
         const program::Tensor* inputs, const program::Tensor* outputs);

// Elements of a block, whose slots fit into the L1 cache.
int64_t lanes(const program::Program& program, const Schedule& schedule);
// Elements of a thread, at least.
int64_t grain(const program::Program& program, const Schedule& schedule);
// Whether all threads work on each row, since there are too few rows for them.
bool threads_share_rows(const program::Program& program, int64_t rows, int64_t columns);

}  // namespace fourfold::cpu
