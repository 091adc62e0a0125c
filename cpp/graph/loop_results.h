// The results of a loop: for each the values of all steps, or the last one.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "loop_step.h"

namespace fourfold::graph {

// One step's element of a series, whose first dimension is the steps.
at::Tensor element(const at::Tensor& series, int64_t step);

class LoopResults {
 public:
  // is_plain: whether all tensors are plain. Results of plain tensors are written into `call.rows`, which the first step
  // allocates; others are stacked.
  LoopResults(const LoopStep& loop, LoopCall& call, bool is_plain);

  // Adds those of one step. Throws c10::Error if their shapes differ from those of the first step.
  void add(const Values& results, int64_t step);
  // Appends all to `values`. last: the last step's.
  void append(const Values& last, Values& values);

 private:
  bool keeps(size_t result) const { return result >= loop_.trails.size() || loop_.trails[result]; }
  at::Tensor stacked(size_t result);

  const LoopStep& loop_;
  LoopCall& call_;
  const bool is_plain_;
  std::vector<std::vector<at::Tensor>> steps_;  // by result, if they aren't plain
};

}  // namespace fourfold::graph
