// Convolutions with few output positions as matrix products: torch's kernels take tens of microseconds for any size,
// because they prepare each call and copy the weights into their own layout.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include <memory>

#include "packed_weights.h"

namespace fourfold::graph {

// Replaces the arguments of aten::convolution by the result: the elements under the window at each position, gathered
// as rows, times the weights. own: packs them, unless null. into: memory for the result, or null. Returns false and does
// nothing for many positions, unless block_convolution.h has them, for other
// dtypes than float32, float64 and, packed, bfloat16 and float16, for tensors without memory of their own, and for arguments that torch may reject.
bool convolve_by_products(torch::jit::Stack& stack, PackedWeights* own, const at::Tensor* into);

// Such a convolution of tensors that lie in the same way in each call. One call at a time.
class FewPositions {
 public:
  // stack: the arguments of a call. Null for those of many positions, and where convolve_by_products() returns
  // false. own must outlive it.
  static std::unique_ptr<FewPositions> of(const torch::jit::Stack& stack, PackedWeights* own);
  ~FewPositions();

  // bias: undefined if there is none. result: memory with the layout of that call's.
  void run(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, const at::Tensor& result);

 private:
  struct Made;

  explicit FewPositions(std::unique_ptr<Made> made);

  std::unique_ptr<Made> made_;
};

}  // namespace fourfold::graph
