// The axes of a call's loop nest: neighbouring axes are merged where all tensors' strides allow it.
#pragma once

#include <cstdint>
#include <vector>

#include "program/layout.h"

namespace fourfold::program {

struct Axes {
  std::vector<int64_t> sizes;                 // of each merged axis, row axes first
  std::vector<std::vector<int64_t>> strides;  // [axis][tensor], inputs first
  size_t of_rows = 0;                         // the number of row axes
  int64_t rows = 1;
  int64_t columns = 1;

  size_t count() const { return sizes.size(); }
  // Whether a tensor's strides allow merging this column axis with the next one.
  bool continues(size_t axis, size_t tensor) const {
    return axis >= of_rows && axis + 1 < count() && strides[axis][tensor] == strides[axis + 1][tensor] * sizes[axis + 1];
  }
};

// Drops axes of size 1 and merges neighbouring axes that are contiguous in every tensor. At least one column axis
// remains. strides: [tensor][the program's axis].
Axes merged_axes(const Program& program, const std::vector<int64_t>& sizes, const std::vector<std::vector<int64_t>>& strides);

}  // namespace fourfold::program
