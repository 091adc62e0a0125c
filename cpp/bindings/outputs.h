// The tensors that a program's call writes: new ones, or existing ones where that doesn't change the result.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>
#include <fourfold/program.h>

#include <vector>

namespace fourfold::bindings {

// What a call may write into, besides new memory.
struct Reuse {
  std::vector<at::Tensor> updated;        // by output, a tensor whose new value it is; undefined: none. May be shorter.
  std::vector<const at::Tensor*> unused;  // tensors that nobody reads after this call, if they have no other reference
};

class Outputs {
 public:
  // inputs: those of the call, alive until it returns.
  Outputs(const fourfold_program* program, const c10::SmallVectorImpl<fourfold_tensor>& inputs, const Reuse* reuse,
          std::vector<at::Tensor>& written)
      : program_(program), inputs_(inputs), reuse_(reuse), written_(written) {}

  // A fourfold_allocate, whose context is an Outputs.
  static void* allocate(
      void* context, int32_t output, int32_t dtype, int32_t dim, const int64_t* sizes, const int64_t* strides);
  // Behind the call: autograd learns that tensors were changed in place.
  void bump_versions() const;

 private:
  void* choose(int32_t output, const fourfold_tensor& layout);
  // Whether a tensor has that layout, and its memory overlaps no other output and only inputs that allow it.
  bool suits(const at::Tensor& tensor, int32_t output, const fourfold_tensor& layout) const;

  const fourfold_program* program_;
  const c10::SmallVectorImpl<fourfold_tensor>& inputs_;
  const Reuse* reuse_;
  std::vector<at::Tensor>& written_;
  std::vector<fourfold_tensor> taken_;  // existing memory that outputs are written into
  std::vector<at::Tensor> updated_;
};

}  // namespace fourfold::bindings
