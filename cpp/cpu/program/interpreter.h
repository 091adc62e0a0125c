// The interpreter of programs: runs them operation by operation, on blocks of elements that stay in the L1 cache. It runs
// first calls, and all calls where nothing can be compiled.
#pragma once

#include <cstdint>
#include <vector>

#include "cpu/program/schedule.h"
#include "program/layout.h"

namespace fourfold::cpu {

// Computes the outputs, which the caller allocates. sizes: of the axes.
void interpret(const program::Program& program, const Schedule& schedule, const std::vector<int64_t>& sizes,
              const program::Tensor* inputs, const program::Tensor* outputs);

// The fewest elements for a thread.
int64_t grain(const Schedule& schedule);
// Whether threads share each row, because there are fewer rows than threads.
bool threads_share_rows(const program::Program& program, int64_t rows, int64_t columns);

}  // namespace fourfold::cpu
