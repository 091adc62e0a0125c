// What a graph's values have to do with the model's own tensors, which are the same in every call.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "../graph/graph.h"

namespace fourfold::model {

// A matrix that a step may pack, and the tensor that has its elements.
struct Weight {
  at::Tensor tensor;
  std::shared_ptr<graph::PackedWeights> packed;
};

// Stops the packing of matrices in this tensor's memory, because others may write to it.
void hand_out(const std::vector<Weight>& weights, const at::Tensor& tensor);

class Weights {
 public:
  // What is packed of a matrix, for all steps that multiply by it, or of a layer's weights.
  std::shared_ptr<graph::PackedWeights> of(const graph::Values& weights, const graph::OperatorStep& step);
  const std::vector<Weight>& all() const { return all_; }

 private:
  std::vector<Weight> all_;
  std::map<std::vector<int64_t>, std::shared_ptr<graph::PackedWeights>> known_;
};

class Constants {
 public:
  Constants() = default;
  // given: the inputs that are the same in every call, the others None.
  explicit Constants(graph::Values given);

  // The next `count` values, which share memory with the tensors behind these ones.
  void add(size_t count, const std::vector<size_t>& aliased = {});
  // The last value is this tensor in every call.
  void set_last(const at::Tensor& constant);
  const c10::IValue& operator[](size_t value) const { return known_[value]; }
  graph::Values at(const std::vector<size_t>& values) const;
  // The model's tensors in whose memory a value may be.
  const std::vector<at::Tensor>& behind(size_t value) const { return behind_[value]; }

 private:
  graph::Values known_;  // None for others
  std::vector<std::vector<at::Tensor>> behind_;
};

// The values in whose memory an operator's results may be.
std::vector<size_t> aliased_by(const graph::OperatorStep& step);

// The view of constants that a step returns: it shares their memory, so that it remains right when they change. Undefined
// for steps that aren't views.
at::Tensor view_of_constants(const graph::OperatorStep& step, const Constants& constants, size_t values);

}  // namespace fourfold::model
