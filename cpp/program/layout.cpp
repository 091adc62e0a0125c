#include "program/layout.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "ops/sizes.h"

namespace fourfold::program {
namespace {

[[noreturn]] void refuse(const std::string& what) { throw std::invalid_argument("program: " + what); }

int64_t product(const Dim& dim, const std::vector<int64_t>& sizes) {
  int64_t result = 1;
  for (const int axis : dim) result *= sizes[axis];
  return result;
}

}  // namespace

std::vector<int64_t> axis_sizes(const Program& program, const Tensor* inputs, size_t count) {
  if (count != program.inputs.size()) {
    refuse("expected " + std::to_string(program.inputs.size()) + " inputs, but got " + std::to_string(count));
  }
  for (size_t k = 0; k < count; ++k) {
    const Input& input = program.inputs[k];
    if (inputs[k].kind != input.kind) refuse("expected another dtype of " + input.name);
    if (static_cast<size_t>(inputs[k].dim) != input.dims.size()) {
      refuse("expected " + input.name + " to have " + std::to_string(input.dims.size()) + " dimensions, but got " +
             std::to_string(inputs[k].dim));
    }
  }
  std::vector<int64_t> sizes;
  for (const Axis& axis : program.axes) sizes.push_back(axis.input < 0 ? axis.size : inputs[axis.input].sizes[axis.dim]);
  std::vector<int64_t> factors = sizes;
  for (const Output& output : program.outputs) {
    if (output.part == 0) factors.push_back(output.parts);
  }
  if (!countable(factors)) refuse("expected axes whose sizes have a product below 2^48");
  for (size_t k = 0; k < count; ++k) {
    for (int d = 0; d < inputs[k].dim; ++d) {
      const int64_t start = program.inputs[k].starts[d], size = product(program.inputs[k].dims[d], sizes);
      const bool is_part = start != Input::whole;
      const int64_t expected = is_part ? start + size : size;
      if (is_part ? inputs[k].sizes[d] < expected : inputs[k].sizes[d] != expected) {
        refuse("expected dimension " + std::to_string(d) + " of " + program.inputs[k].name + " to have " +
               (is_part ? "at least size " : "size ") + std::to_string(expected) + ", but got " +
               std::to_string(inputs[k].sizes[d]));
      }
    }
  }
  return sizes;
}

std::vector<int64_t> axis_strides(
    const std::vector<Dim>& dims, const int64_t* strides, const std::vector<int64_t>& sizes) {
  std::vector<int64_t> result(sizes.size());
  for (size_t d = 0; d < dims.size(); ++d) {
    int64_t stride = strides[d];
    for (auto axis = dims[d].rbegin(); axis != dims[d].rend(); ++axis) {
      result[*axis] = stride;
      stride *= sizes[*axis];
    }
  }
  return result;
}

Tensor read_tensor(const Input& input, Tensor tensor) {
  int64_t offset = 0;
  for (int d = 0; d < tensor.dim; ++d) offset += std::max<int64_t>(0, input.starts[d]) * tensor.strides[d];
  if (tensor.data != nullptr && offset != 0) tensor.data = static_cast<char*>(tensor.data) + offset * element_size(tensor.kind);
  return tensor;
}

Shape shape_of(const Output& output, const std::vector<int64_t>& sizes) {
  Shape shape;
  for (const Dim& dim : output.dims) shape.sizes.push_back(product(dim, sizes));
  if (output.join >= 0) shape.sizes[output.join] *= output.parts;
  shape.strides.resize(shape.sizes.size());
  int64_t stride = 1;
  for (auto d = output.order.rbegin(); d != output.order.rend(); ++d) {
    shape.strides[*d] = stride;
    if (shape.sizes[*d] > 1) stride *= shape.sizes[*d];
  }
  return shape;
}

std::string steps_text(const fourfold_steps& steps, size_t inputs, size_t outputs) {
  std::string text = "t";
  for (size_t k = 0; k < inputs; ++k) {
    if (k > 0) text += ',';
    const bool is_state = steps.feeds[k] >= 0;
    text += is_state ? 'c' : steps.input_strides[k] == 0 ? 'i' : 's';
    if (is_state) text += std::to_string(steps.feeds[k]);
  }
  for (size_t k = 0; k < outputs; ++k) {
    text += k == 0 ? ';' : ',';
    text += steps.output_strides[k] == 0 ? 'l' : 's';
  }
  return text;
}

std::vector<bool> find_overwritable(const Program& program) {
  std::vector<bool> found;
  int last = 0;
  for (const Output& output : program.outputs) last = std::max(last, program.values[output.value].stage);
  for (const Output& output : program.outputs) {
    if (output.part > 0) continue;
    size_t axes = 0;
    for (const Dim& dim : output.dims) axes += dim.size();
    const bool is_whole = output.level == Level::element && output.parts == 1 && axes == program.axes.size();
    for (const Input& input : program.inputs) {
      const bool is_alike = !input.is_number && !input.is_part() && input.kind == output.kind && input.dims == output.dims;
      found.push_back(is_whole && is_alike && program.values[output.value].stage == last);
    }
  }
  return found;
}

}  // namespace fourfold::program
