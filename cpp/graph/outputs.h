// The output tensors of a program's call: new ones, or existing ones if writing into them can't change the result.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>
#include <fourfold/program.h>

#include <vector>

namespace fourfold::graph {

// An existing tensor into which to write an output, or undefined. is_new: it overlaps no other tensor of the call.
struct Target {
  at::Tensor tensor;
  bool is_new = false;
};

// A program with its name in profiles.
struct NamedProgram {
  fourfold_program* program = nullptr;
  const char* name = nullptr;
  at::Device device = at::kCPU;  // of its tensors
};

// Allocates a tensor with that layout on a device, without autograd.
at::Tensor new_memory(at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType dtype, at::Device device);

// A tensor as an argument of a program. The tensor must outlive the description.
fourfold_tensor described(const at::Tensor& tensor);

class Outputs {
 public:
  // inputs: those of the call, alive until it returns. targets: by output; later outputs have none.
  Outputs(const NamedProgram& program, const c10::SmallVectorImpl<fourfold_tensor>& inputs,
          const std::vector<Target>& targets);

  // The targets that the program may write into: the `outputs` of fourfold_program_run().
  const fourfold_tensor* given() const { return given_.empty() ? nullptr : given_.data(); }
  // A fourfold_allocate with an Outputs as its context.
  static void* allocate(
      void* context, int32_t output, int32_t dtype, int32_t dim, const int64_t* sizes, const int64_t* strides);
  // After the call: appends the outputs in order, and bumps the versions of tensors that were modified in place.
  void take(std::vector<at::Tensor>& written);

 private:
  // Whether the program may write into a tensor: it overlaps no other target, and only inputs that allow it.
  bool suits(const at::Tensor& tensor, int32_t output) const;

  const fourfold_program* program_;
  const at::Device device_;
  const c10::SmallVectorImpl<fourfold_tensor>& inputs_;
  const std::vector<Target>& targets_;
  std::vector<fourfold_tensor> given_;
  std::vector<at::Tensor> new_;  // by output: those that were allocated
};

}  // namespace fourfold::graph
