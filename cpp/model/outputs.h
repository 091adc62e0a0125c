// The tensors that a program's call writes: new ones, or existing ones where that doesn't change the result.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>
#include <fourfold/program.h>

#include <vector>

namespace fourfold::model {

// An existing tensor that is to have an output's value; undefined: none. is_new: it overlaps nothing that the call reads or writes.
struct Target {
  at::Tensor tensor;
  bool is_new = false;
};

// A program with the name that profilers show.
struct NamedProgram {
  fourfold_program* program = nullptr;
  const char* name = nullptr;
  at::Device device = at::kCPU;  // of its tensors
};

// New memory on a device, of that layout. Not for autograd.
at::Tensor new_memory(at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType dtype, at::Device device);

// As programs take it. The tensor outlives the description.
fourfold_tensor described(const at::Tensor& tensor);

class Outputs {
 public:
  // inputs: those of the call, alive until it returns. targets: by output; none beyond the last.
  Outputs(const NamedProgram& program, const c10::SmallVectorImpl<fourfold_tensor>& inputs,
          const std::vector<Target>& targets);

  // The targets that the program may write into, as fourfold_program_run() takes them.
  const fourfold_tensor* given() const { return given_.empty() ? nullptr : given_.data(); }
  // A fourfold_allocate, whose context is an Outputs.
  static void* allocate(
      void* context, int32_t output, int32_t dtype, int32_t dim, const int64_t* sizes, const int64_t* strides);
  // After the call: appends the outputs in order. Autograd learns which tensors were changed in place.
  void take(std::vector<at::Tensor>& written);

 private:
  // Whether the program may write into a tensor: it overlaps no other target, and only inputs that allow it.
  bool suits(const at::Tensor& tensor, int32_t output) const;

  const fourfold_program* program_;
  const at::Device device_;
  const c10::SmallVectorImpl<fourfold_tensor>& inputs_;
  const std::vector<Target>& targets_;
  std::vector<fourfold_tensor> given_;
  std::vector<at::Tensor> new_;  // by output, as they were asked for
};

}  // namespace fourfold::model
