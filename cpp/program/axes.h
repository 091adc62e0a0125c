// The axes of a call as nests step through them: merged where all tensors allow it.
#pragma once

#include <cstdint>
#include <vector>

#include "program/layout.h"

namespace fourfold::program {

struct Axes {
  std::vector<int64_t> sizes;                 // of each merged axis, those of the rows first
  std::vector<std::vector<int64_t>> strides;  // of each, by tensor, inputs first
  size_t of_rows = 0;                         // how many number the rows
  int64_t rows = 1;
  int64_t columns = 1;

  size_t count() const { return sizes.size(); }
  // Whether a tensor steps through this axis of a row's columns and the next one as through one.
  bool continues(size_t axis, size_t tensor) const {
    return axis >= of_rows && axis + 1 < count() && strides[axis][tensor] == strides[axis + 1][tensor] * sizes[axis + 1];
  }
};

// Axes of one element are left out, and two that every tensor steps through as through one are one. There is at least one axis
// of the columns. strides: of each tensor, by the program's axes.
Axes merged_axes(const Program& program, const std::vector<int64_t>& sizes, const std::vector<std::vector<int64_t>>& strides);

}  // namespace fourfold::program
