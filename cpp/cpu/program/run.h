// The CPU interpreter of programs.
#pragma once

#include "cpu/program/schedule.h"
#include "program/layout.h"

namespace fourfold::cpu {

// Computes the outputs, which the caller allocates. sizes: of the axes.
void run(const program::Program& program, const Schedule& schedule, const std::vector<int64_t>& sizes,
         const program::Tensor* inputs, const program::Tensor* outputs);

// The number of elements of a block: of reductions, or else so many that the slots fit into the L1 cache.
int64_t lanes(const program::Program& program, const Schedule& schedule);
// The cost of an element, with its memory accesses, in additions.
int64_t cost_of_element(const program::Program& program, const Schedule& schedule);
// The minimum number of elements for a thread.
int64_t grain(const program::Program& program, const Schedule& schedule);
// Whether threads share each row, because there are fewer rows than threads.
bool threads_share_rows(const program::Program& program, int64_t rows, int64_t columns);

}  // namespace fourfold::cpu
