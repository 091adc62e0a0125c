// Runs an elementwise job's parts on torch's threads.
#pragma once

#include "cpu/parallel.h"
#include "ops/elementwise_job.h"

namespace fourfold::cpu {

// The grain size of torch's elementwise operations.
inline constexpr int64_t elementwise_grain = 32768;

// part(job, begin, end) computes elements of the result.
template <typename Part>
void in_parts(const Elementwise& job, const Part& part) {
  if (job.numel <= elementwise_grain) return part(job, 0, job.numel);
  parallel(job.numel, elementwise_grain, [&](int64_t begin, int64_t end) { part(job, begin, end); });
}

}  // namespace fourfold::cpu
