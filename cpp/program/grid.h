// How a call's elements are shared among the threads of a grid, on a device that runs many: the layout that its kernels are
// compiled for (nest/grid/layout.py reads it), the numbers that it passes to them, and how many blocks each has. It names no
// backend.
#pragma once

#include <fourfold/program.h>

#include <cstdint>
#include <string>
#include <vector>

#include "program/axes.h"
#include "program/layout.h"

namespace fourfold::program {

// What threads share: elements; rows, each by threads that lie along its columns; rows that lie side by side in memory; or columns
// that are summed over the rows.
enum class GridSplit { elements, rows, side, columns };

class GridLayout {
 public:
  // The program outlives it. is_aligned: whether all tensors begin at multiples of 16 bytes. steps: of a loop whose body the
  // program is, or null.
  GridLayout(const Program& program, const std::vector<int64_t>& sizes, const Tensor* inputs, const Tensor* outputs,
             bool is_aligned, const fourfold_steps* steps = nullptr);

  // Such as "grid rows rows=1 lanes=4 copies=1 group=32 each=2 split=0 wide=0:nv,0v,n0": of each tensor, inputs first, what its
  // stride along each axis is: 0, 1, v (1, and its vectors are aligned), d (as through one axis with the next), or another (n).
  const std::string& text() const { return text_; }
  // Those that a call passes; of inputs that are numbers, their bits come last.
  std::vector<int64_t> numbers(const Tensor* inputs) const;
  // Bytes of memory that kernels leave results in for the next.
  int64_t scratch_bytes() const { return scratch_bytes_; }
  // Of so many kernels, the blocks of one.
  int64_t blocks(size_t kernel, size_t kernels) const;
  // Whether there is nothing to compute.
  bool is_empty() const;
  bool has_vectors() const { return lanes_ > 1; }

 private:
  void choose_split(bool is_loop);
  void choose_lanes(bool is_aligned, const fourfold_steps* steps);
  void share_rows();
  void share_columns();
  void find_width(const fourfold_steps* steps);
  bool vectors_fit(int64_t lanes, const fourfold_steps* steps) const;
  int64_t step_stride(const fourfold_steps& steps, size_t tensor) const;
  template <typename F>
  void for_elements(const F& f) const;
  void write_text(const fourfold_steps* steps);
  std::string class_of(size_t tensor) const;

  const Program& program_;
  Axes axes_;
  GridSplit split_ = GridSplit::elements;
  int64_t lanes_ = 1;
  int64_t copies_ = 1;
  int64_t group_ = 1;
  int64_t each_ = 0;
  int64_t chunk_ = 0;
  int64_t chunks_ = 1;
  int64_t blocks_ = 0;
  bool is_split_ = false;
  bool is_wide_ = false;
  int64_t scratch_bytes_ = 0;
  std::vector<int64_t> steps_;  // their count, and each tensor's stride
  std::string text_;
};

}  // namespace fourfold::program
