// Maps a program's axes to the sizes and strides of one call's tensors.
#pragma once

#include <fourfold/program.h>

#include <cstdint>
#include <string>
#include <vector>

#include "program/program.h"

namespace fourfold::program {

// A tensor of a call, or a scalar: then dim is 0 and data points to 8 bytes in host memory.
struct Tensor {
  void* data = nullptr;
  Kind kind = Kind::float32;
  int dim = 0;
  const int64_t* sizes = nullptr;
  const int64_t* strides = nullptr;  // in elements
  void* base = nullptr;              // the allocation, on devices without memory addresses
};

// The size of each axis. Throws std::invalid_argument if the tensors don't match the program.
std::vector<int64_t> axis_sizes(const Program& program, const Tensor* inputs, size_t count);

// The tensor from the first element that the program reads of it.
Tensor read_tensor(const Input& input, Tensor tensor);

// The stride of each axis; 0 for axes that the tensor does not have.
std::vector<int64_t> axis_strides(
    const std::vector<Dim>& dims, const int64_t* strides, const std::vector<int64_t>& sizes);

// The sizes and strides of a newly allocated output: of the whole tensor, if several outputs are parts of it.
struct Shape {
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;

  // The offset of a part in elements.
  int64_t offset(const Output& output) const {
    return output.join < 0 ? 0 : sizes[output.join] / output.parts * output.part * strides[output.join];
  }
};
Shape shape_of(const Output& output, const std::vector<int64_t>& sizes);

// The part of a layout that describes a loop over steps, such as "tc1,s,i;l,s". Inputs: c1 is a state fed by output 1,
// s a series with one tensor for each step, i loop-invariant. Outputs: s is a series, l keeps only the last step's
// value.
std::string steps_text(const fourfold_steps& steps, size_t inputs, size_t outputs);

// For each (whole output, input), output-major: whether the output may be written into the input's memory if both have
// the same strides. Both must cover the iteration space with the same dimensions, and no stage after the output's may
// read the input again.
std::vector<bool> find_overwritable(const Program& program);

}  // namespace fourfold::program
