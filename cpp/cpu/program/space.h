// The iteration space: maps element numbers, in the order of a program's loops, to offsets in each tensor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "program/program.h"

namespace fourfold::cpu {

class Space {
 public:
  // strides: [tensor][axis], in elements.
  Space(const std::vector<int64_t>& sizes, const std::vector<std::vector<int64_t>>& strides);

  int64_t numel() const { return numel_; }
  // The number of elements from `at` to the end of the innermost axis' row.
  int64_t left_of_row(int64_t at) const { return axes_ == 0 ? 1 : size_[axes_ - 1] - at % size_[axes_ - 1]; }
  int64_t row() const { return axes_ == 0 ? 1 : size_[axes_ - 1]; }

  bool side_by_side(size_t tensor) const { return dense_[tensor]; }

  // Whether a tensor is transposed: contiguous along the next-to-innermost axis instead of the innermost one.
  bool lies_across(size_t tensor) const {
    return axes_ > 1 && size_[axes_ - 2] >= few_across && step(tensor) != 0 && step(tensor) != 1 && stride(tensor, axes_ - 2) == 1;
  }
  int64_t step(size_t tensor) const { return stride(tensor, axes_ - 1); }
  int64_t offset(size_t tensor, int64_t at) const;
  // The number of innermost rows from this one to the end of the next axis.
  int64_t rows_left(int64_t row) const { return size_[axes_ - 2] - row % size_[axes_ - 2]; }

  // The offset of `count` elements from the at-th on if they have stride 0 or 1; otherwise the stride is -1.
  struct Run {
    int64_t offset;
    int64_t stride;
  };
  Run find(size_t tensor, int64_t at, int64_t count) const;

  // Copy `count` elements from a tensor into contiguous memory, and back.
  void gather(size_t tensor, const void* data, int64_t size, int64_t at, int64_t count, void* to) const;
  void scatter(size_t tensor, const void* from, int64_t size, int64_t at, int64_t count, void* data) const;

 private:
  static constexpr int64_t few_across = 8;

  int64_t stride(size_t tensor, int axis) const { return strides_[tensor * axes_ + axis]; }
  int64_t locate(size_t tensor, int64_t at, int64_t* index) const;
  template <typename F>
  void for_pieces(size_t tensor, int64_t at, int64_t count, const F& f) const;

  int axes_ = 0;
  int64_t numel_ = 1;
  int64_t size_[program::most_axes];
  std::vector<int64_t> strides_;
  std::vector<bool> dense_;
};

}  // namespace fourfold::cpu
