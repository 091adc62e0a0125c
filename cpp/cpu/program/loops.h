// The loops of a call: its axes, merged where all tensors allow it, and the layout that a compiled nest is for.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cpu/program/schedule.h"
#include "program/layout.h"
#include "program/nests.h"

namespace fourfold::cpu {

// How threads share a call: elements, whole rows, or the columns of each row.
enum class Split : char { elements = 'e', rows = 'r', columns = 'c' };

class Loops {
 public:
  Loops(const program::Program& program, const std::vector<int64_t>& sizes, const program::Tensor* inputs,
        const program::Tensor* outputs);

  // Such as "r1:n1,01,n1": the split, the number of axes of the rows, and for each tensor, inputs first, what its stride
  // along each axis is: 0, 1, or another.
  const std::string& layout() const { return layout_; }
  int64_t rows() const { return rows_; }
  int64_t columns() const { return columns_; }

  void run(const program::Nest& nest, const program::Program& program, const Schedule& schedule,
           const std::vector<int64_t>& sizes, const program::Tensor* inputs, const program::Tensor* outputs) const;

 private:
  void add_axes(const std::vector<int64_t>& sizes, size_t first, size_t last, const std::vector<std::vector<int64_t>>& strides);

  Split split_ = Split::elements;
  size_t row_axes_ = 0;
  int64_t rows_ = 1;
  int64_t columns_ = 1;
  std::vector<int64_t> sizes_;                 // of each axis, those of the rows first
  std::vector<std::vector<int64_t>> strides_;  // of each axis, by tensor
  std::string layout_;
};

}  // namespace fourfold::cpu
