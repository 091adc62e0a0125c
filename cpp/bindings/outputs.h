// The tensors that a program's call writes: new ones, or existing ones where that doesn't change the result.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>
#include <fourfold/program.h>

#include <vector>

namespace fourfold::bindings {

class Outputs {
 public:
  // inputs: those of the call, alive until it returns. updated: by output, the tensor whose new value it is; undefined, or
  // beyond the last: none.
  Outputs(const fourfold_program* program, const c10::SmallVectorImpl<fourfold_tensor>& inputs,
          const std::vector<at::Tensor>& updated, std::vector<at::Tensor>& written)
      : program_(program), inputs_(inputs), updated_(updated), written_(written) {}

  // A fourfold_allocate, whose context is an Outputs.
  static void* allocate(
      void* context, int32_t output, int32_t dtype, int32_t dim, const int64_t* sizes, const int64_t* strides);
  // After the call: autograd learns which tensors were changed in place.
  void bump_versions() const;

 private:
  void* choose(int32_t output, const fourfold_tensor& layout);
  // Whether a tensor has that layout, and its memory overlaps no other output and only inputs that allow it.
  bool suits(const at::Tensor& tensor, int32_t output, const fourfold_tensor& layout) const;

  const fourfold_program* program_;
  const c10::SmallVectorImpl<fourfold_tensor>& inputs_;
  const std::vector<at::Tensor>& updated_;
  std::vector<at::Tensor>& written_;
  std::vector<size_t> in_place_;  // the outputs written into existing tensors
};

}  // namespace fourfold::bindings
