// The layout of a program's elements in the tensors of one call.
#pragma once

#include <fourfold/program.h>

#include <cstdint>
#include <string>
#include <vector>

#include "program/program.h"

namespace fourfold::program {

// A tensor of a call, or a number: its data has 8 bytes, and its dim is 0.
struct Tensor {
  void* data = nullptr;
  Kind kind = Kind::float32;
  int dim = 0;
  const int64_t* sizes = nullptr;
  const int64_t* strides = nullptr;  // in elements
  void* base = nullptr;              // the allocation, where the device's memory has no addresses
};

// The size of each axis. Throws std::invalid_argument if the tensors don't fit the program.
std::vector<int64_t> axis_sizes(const Program& program, const Tensor* inputs, size_t count);

// The stride of each axis, 0 for axes that the tensor does not have.
std::vector<int64_t> axis_strides(
    const std::vector<Dim>& dims, const int64_t* strides, const std::vector<int64_t>& sizes);

// Of a new output: the whole tensor.
struct Shape {
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;

  // The offset of a part, in elements.
  int64_t offset(const Output& output) const {
    return output.join < 0 ? 0 : sizes[output.join] / output.parts * output.part * strides[output.join];
  }
};
Shape shape_of(const Output& output, const std::vector<int64_t>& sizes);

// What a loop over steps adds to a layout, such as "tc1,s,i;l,s": for each input whether it is a state, that output 1 feeds, a series
// or the same in every step; for each output whether it is a series, or the last step's.
std::string steps_text(const fourfold_steps& steps, size_t inputs, size_t outputs);

// For each whole output in turn, and within it for each input, whether the output may be written into the memory of the input
// if that has its strides: both have one element for each of the iteration space, at the same place, and no stage after the
// output's reads the input again.
std::vector<bool> find_overwritable(const Program& program);

}  // namespace fourfold::program
