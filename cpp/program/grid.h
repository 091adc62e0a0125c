// How the threads of a GPU grid share a call's elements: the layout that the kernels are compiled for
// (nest/grid/layout.py parses it), the numbers passed to them, and the number of blocks of each. It is the same for all
// GPU backends.
#pragma once

#include <fourfold/program.h>

#include <cstdint>
#include <string>
#include <vector>

#include "program/axes.h"
#include "program/layout.h"

namespace fourfold::program {

// Numbers that the kernels know too: nest/grid reads them from `_C`.
namespace grid {
// The first arguments of a kernel; the axes' sizes, the strides, the loop's steps and the numbers follow.
inline constexpr const char* arguments[] = {"rows", "columns", "chunk", "chunks"};
inline constexpr int64_t threads = 256;          // in a block, unless rows need more
inline constexpr int64_t threads_of_rows = 128;  // of a block of rows that a warp or less computes
inline constexpr int64_t neighbours = 32;        // threads that exchange values without shared memory (a warp)
inline constexpr int64_t parts_of_rows = 8;      // groups of threads that share a block's chunk of rows in sums over rows
inline constexpr int64_t bytes_of_part = 8;      // of a sum that one kernel passes to the next
}  // namespace grid

// How threads split the work: by elements; by rows, with a row's threads along its columns; by rows that are adjacent
// in memory (side); or by columns, which are summed over the rows.
enum class GridSplit { elements, rows, side, columns };

class GridLayout {
 public:
  // The program must outlive it. is_aligned: whether all tensors begin at multiples of 16 bytes. steps: the loop whose
  // body is the program, or null.
  GridLayout(const Program& program, const std::vector<int64_t>& sizes, const Tensor* inputs, const Tensor* outputs,
             bool is_aligned, const fourfold_steps* steps = nullptr);

  // Such as "grid rows rows=1 lanes=4 copies=1 group=32 each=2 split=0 wide=0:nv,0v,n0": for each tensor, inputs first,
  // the stride class of each axis: 0, 1, v (1 and its vectors are aligned), d (mergeable with the next axis) or n
  // (another).
  const std::string& text() const { return text_; }
  // The numbers passed to the kernels; the bits of scalar inputs come last.
  std::vector<int64_t> numbers(const Tensor* inputs) const;
  // Bytes of scratch memory through which one kernel passes results to the next.
  int64_t scratch_bytes() const { return scratch_bytes_; }
  // The number of blocks of one of `kernels` kernels.
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
  std::vector<int64_t> steps_;  // the step count, then each tensor's stride
  std::string text_;
};

}  // namespace fourfold::program
