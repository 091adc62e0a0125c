// The loops of a call: its axes, merged where all tensors allow it, and the layout that a compiled nest is for.
#pragma once

#include <fourfold/program.h>

#include <cstdint>
#include <string>
#include <vector>

#include "cpu/program/schedule.h"
#include "program/layout.h"
#include "program/nests.h"

namespace fourfold::cpu {

// How threads share a call: elements, whole rows, the columns of each row, or rows of which many are computed at once, because
// they have few columns or lie side by side in memory.
enum class Split : char { elements = 'e', rows = 'r', columns = 'c', short_rows = 's', side_by_side = 'b' };

class Loops {
 public:
  // The program and its schedule outlive it. streams: whether outputs are stored past the caches, where they can be. steps: of a
  // loop whose body the program is.
  Loops(const program::Program& program, const Schedule& schedule, const std::vector<int64_t>& sizes,
        const program::Tensor* inputs, const program::Tensor* outputs, bool streams = false,
        const fourfold_steps* steps = nullptr);

  // Whether the tensors are so large that the caches don't hold what a call writes until somebody reads it.
  bool is_large() const;
  // Whether these outputs, each behind its address, can be stored past the caches: they are aligned, and none is an input.
  bool can_stream(const program::Tensor* inputs, const program::Tensor* outputs) const;

  // Such as "r1:n1,01,n1": the split, the number of axes of the rows, and for each tensor, inputs first, what its stride
  // along each axis is: 0, 1, or another (n). Along the innermost axis 2 to 8 are written as they are, and = is 1 of an output
  // that is stored past the caches. Of a row's columns along several axes, d is an axis that a tensor steps through as through
  // one with the next. Of short rows, "s1x4:c1,01", also the number of their columns, and where a row follows another behind so
  // many elements. A loop over steps has program::steps_text() and a slash in front.
  const std::string& layout() const { return layout_; }
  int64_t rows() const { return rows_; }
  int64_t columns() const { return columns_; }

  void run(const program::Nest& nest, const program::Tensor* inputs, const program::Tensor* outputs) const;
  // The same in parts that don't depend on each other: how many at most, and one of so many.
  int64_t parts(const program::Nest& nest) const;
  void run_part(const program::Nest& nest, const program::Tensor* inputs, const program::Tensor* outputs, int64_t part,
                int64_t parts) const;

 private:
  using Strides = std::vector<std::vector<int64_t>>;
  static constexpr size_t no_axis = SIZE_MAX;

  void add_steps(const fourfold_steps& steps);
  void share_elements();
  // Whether a nest computes as many rows at once as a vector has lanes.
  bool has_rows_together() const { return split_ == Split::short_rows || split_ == Split::side_by_side; }
  void find_short_rows();
  void find_rows_side_by_side();
  bool is_interleaved(size_t axis, size_t tensor) const;
  bool continues_columns(size_t axis, size_t tensor) const;
  bool is_streamed(size_t axis, size_t tensor) const;
  void find_turned(const Strides& strides);
  std::vector<int64_t> arguments_of(const program::Tensor* inputs, const program::Tensor* outputs) const;
  void run_by_rows(const program::Nest& nest, std::vector<int64_t>& arguments, const program::Tensor* outputs) const;

  const program::Program& program_;
  const Schedule& schedule_;
  const std::vector<int64_t> axis_sizes_;  // the program's
  Split split_ = Split::elements;
  size_t row_axes_ = 0;
  int64_t rows_ = 1;
  int64_t columns_ = 1;
  int64_t units_ = 0;  // where threads share elements: how many parts there are, and the elements of each
  int64_t unit_ = 1;
  size_t turned_ = no_axis;  // along which tensors lie side by side whose neighbours are not those along the innermost axis
  int64_t grain_;  // elements of one step from which on threads share them
  int64_t lanes_;
  bool streams_;
  std::vector<int64_t> sizes_;      // of each merged axis, those of the rows first
  Strides strides_;                 // of each, by tensor
  std::vector<int64_t> arguments_;  // of a nest, without addresses
  std::string layout_;
};

}  // namespace fourfold::cpu
