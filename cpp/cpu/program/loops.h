// The loops of a call: its merged axes, and the layout that its nest is compiled for.
#pragma once

#include <fourfold/program.h>

#include <cstdint>
#include <string>
#include <vector>

#include "cpu/program/schedule.h"
#include "program/layout.h"
#include "program/nests.h"

namespace fourfold::cpu {

// How threads share a call: by elements, by whole rows, by the columns of each row, or by rows that are vectorised
// across rows, because they have few columns or are adjacent in memory.
enum class Split : char { elements = 'e', rows = 'r', columns = 'c', short_rows = 's', side_by_side = 'b' };

class Loops {
 public:
  // The program and its schedule must outlive it. streams: whether outputs use non-temporal stores where possible.
  // steps: the loop whose body is the program, or null.
  Loops(const program::Program& program, const Schedule& schedule, const std::vector<int64_t>& sizes,
        const program::Tensor* inputs, const program::Tensor* outputs, bool streams = false,
        const fourfold_steps* steps = nullptr);

  // Whether the tensors are so large that outputs are evicted from the caches before they are read.
  bool is_large() const;
  // Whether these outputs allow non-temporal stores: they are aligned, and none is an input.
  bool can_stream(const program::Tensor* inputs, const program::Tensor* outputs) const;

  // Such as "r1:n1,01,n1": the split, the number of row axes, and for each tensor, inputs first, the stride class of
  // each axis: 0, 1 or n (another). Along the innermost axis strides from 2 to 8 are written as digits, and = is stride
  // 1 of an output with non-temporal stores. d is a column axis that is mergeable with the next one for this tensor.
  // Short rows, "s1x4:c1,01", also have their number of columns, and c marks a row stride of that number; rows of few
  // columns that the program fixes have it too, "r1x48:n1,01". f marks rows side by side of few columns, "b2f:n1n". "t"
  // and a number follow if tensors are transposed: contiguous along that axis but not along the innermost one. A loop
  // over steps has program::steps_text() and a slash as a prefix.
  const std::string& layout() const { return layout_; }
  int64_t rows() const { return rows_; }
  int64_t columns() const { return columns_; }
  // The work of a call, in additions.
  int64_t work() const { return rows_ * columns_ * cost_; }

  void run(const program::Nest& nest, const program::Tensor* inputs, const program::Tensor* outputs) const;
  // The same in independent parts: the maximum number of parts, and the run of one of them.
  int64_t parts(const program::Nest& nest) const;
  void run_part(const program::Nest& nest, const program::Tensor* inputs, const program::Tensor* outputs, int64_t part,
                int64_t parts) const;

 private:
  using Strides = std::vector<std::vector<int64_t>>;
  static constexpr size_t no_axis = SIZE_MAX;

  void add_steps(const fourfold_steps& steps);
  void share_elements();
  // Whether a nest vectorises across rows.
  bool has_rows_together() const { return split_ == Split::short_rows || split_ == Split::side_by_side; }
  // How many rows a nest computes together, in whole vectors.
  int64_t rows_together() const;
  // Rows that one thread takes at least, and how many such parts there are.
  int64_t rows_of_part() const;
  int64_t row_parts() const;
  bool has_few_columns() const;
  void order_rows();
  void find_short_rows();
  void find_rows_side_by_side();
  bool is_interleaved(size_t axis, size_t tensor) const;
  bool continues_columns(size_t axis, size_t tensor) const;
  bool is_streamed(size_t axis, size_t tensor) const;
  // The axis along which tensors are contiguous that aren't contiguous along the innermost one.
  void find_transposed_axis();
  std::vector<int64_t> arguments_of(const program::Tensor* inputs, const program::Tensor* outputs) const;
  void run_by_rows(const program::Nest& nest, std::vector<int64_t>& arguments, const program::Tensor* outputs) const;

  const program::Program& program_;
  const Schedule& schedule_;
  const std::vector<int64_t> axis_sizes_;  // of the program's axes
  Split split_ = Split::elements;
  size_t row_axes_ = 0;
  int64_t rows_ = 1;
  int64_t columns_ = 1;
  int64_t units_ = 0;  // with Split::elements: the number of parts, and the elements of each
  int64_t unit_ = 1;
  size_t transposed_ = no_axis;
  int64_t grain_;  // the fewest elements for a thread in one step
  int64_t cost_;   // of an element, in all steps
  bool streams_;
  std::vector<int64_t> sizes_;      // of each merged axis, row axes first
  Strides strides_;                 // [axis][tensor]
  std::vector<int64_t> arguments_;  // a nest's arguments, without addresses
  std::string layout_;
};

}  // namespace fourfold::cpu
