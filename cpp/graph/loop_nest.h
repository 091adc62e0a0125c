// Runs the steps of a loop whose body is one program in one loop nest (fourfold_program_run_steps).
#pragma once

#include <ATen/core/Tensor.h>
#include <fourfold/program.h>

#include <string>
#include <utility>
#include <vector>

#include "loop_step.h"

namespace fourfold::graph {

struct ProgramStep;

class LoopNest {
 public:
  // Of the steps from `begin` on, at least 1. The body has a plan.
  LoopNest(const LoopStep& loop, const LoopCall& call, int64_t begin);

  // Chooses the tensors that the steps write and read. results: those of the step before.
  Obstacle prepare(const Values& results);
  // After prepare(): the layout that the nest is compiled for.
  Obstacle find_layout(std::string& layout) const;
  // After prepare(). `results` become those of the last step.
  Obstacle run(Values& results);

 private:
  bool is_series(size_t result) const { return result >= loop_.trails.size() || loop_.trails[result]; }
  Obstacle find_program(const Values& results);
  Obstacle add_outputs(const Values& results);
  Obstacle add_inputs(const Values& results);
  Obstacle add_input(const at::Tensor& tensor, int64_t stride, int32_t feed);
  fourfold_steps steps() const { return {steps_, input_feeds_.data(), input_strides_.data(), output_strides_.data()}; }

  const LoopStep& loop_;
  const LoopCall& call_;
  const int64_t steps_;
  const int64_t first_;
  const int64_t sign_;
  const size_t read_;  // the number of values that the body reads
  const ProgramStep* program_ = nullptr;
  std::vector<at::Tensor> held_;  // the descriptions point to their sizes
  std::vector<int64_t> numbers_;  // the scalars' bits, to which descriptions point
  std::vector<fourfold_tensor> inputs_;
  std::vector<int64_t> input_strides_;
  std::vector<int32_t> input_feeds_;
  std::vector<fourfold_tensor> outputs_;
  std::vector<int64_t> output_strides_;
  std::vector<int32_t> output_of_;                  // by state
  std::vector<std::pair<size_t, size_t>> last_of_;  // (state, the result whose last element it is)
  Values last_;
};

}  // namespace fourfold::graph
