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
  // The offset of `count` elements from the at-th on if they are contiguous in memory, otherwise -1.
  int64_t contiguous(size_t tensor, int64_t at, int64_t count) const;

  // Copy `count` elements from a tensor into contiguous memory, and back.
  void gather(size_t tensor, const void* data, int64_t size, int64_t at, int64_t count, void* to) const;
  void scatter(size_t tensor, const void* from, int64_t size, int64_t at, int64_t count, void* data) const;

 private:
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
