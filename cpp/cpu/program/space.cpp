#include "cpu/program/space.h"

#include <algorithm>
#include <cstring>

namespace fourfold::cpu {
namespace {

// Copies elements by their size only.
template <typename T>
void copy(const void* from, int64_t from_stride, void* to, int64_t to_stride, int64_t count) {
  const T* source = static_cast<const T*>(from);
  T* target = static_cast<T*>(to);
  if (from_stride == 1 && to_stride == 1) {
    std::memcpy(target, source, static_cast<size_t>(count) * sizeof(T));
  } else if (from_stride == 0 && to_stride == 1) {
    std::fill(target, target + count, *source);
  } else {
    for (int64_t k = 0; k < count; ++k) target[k * to_stride] = source[k * from_stride];
  }
}

void copy(int64_t size, const void* from, int64_t from_stride, void* to, int64_t to_stride, int64_t count) {
  switch (size) {
    case 1: return copy<uint8_t>(from, from_stride, to, to_stride, count);
    case 2: return copy<uint16_t>(from, from_stride, to, to_stride, count);
    case 4: return copy<uint32_t>(from, from_stride, to, to_stride, count);
    default: return copy<uint64_t>(from, from_stride, to, to_stride, count);
  }
}

}  // namespace

// Drops axes of size 1 and merges neighbouring axes that are contiguous in every tensor.
Space::Space(const std::vector<int64_t>& sizes, const std::vector<std::vector<int64_t>>& strides) {
  std::vector<size_t> first;  // for each merged axis, the innermost original axis
  for (size_t a = 0; a < sizes.size(); ++a) {
    numel_ *= sizes[a];
    if (sizes[a] == 1) continue;
    const bool merges = axes_ > 0 && std::all_of(strides.begin(), strides.end(), [&](const auto& stride) {
                          return stride[first.back()] == stride[a] * sizes[a];
                        });
    if (merges) {
      size_[axes_ - 1] *= sizes[a];
      first.back() = a;
    } else {
      size_[axes_++] = sizes[a];
      first.push_back(a);
    }
  }
  for (const auto& stride : strides) {
    for (const size_t a : first) strides_.push_back(stride[a]);
    dense_.push_back(axes_ == 0 || (axes_ == 1 && stride[first[0]] == 1));
    if (axes_ > 1) {
      int64_t next = 1;
      bool dense = true;
      for (int d = axes_ - 1; d >= 0; --d) {
        dense = dense && stride[first[d]] == next;
        next *= size_[d];
      }
      dense_.back() = dense;
    }
  }
}

int64_t Space::locate(size_t tensor, int64_t at, int64_t* index) const {
  int64_t offset = 0;
  for (int d = axes_ - 1; d >= 0; --d) {
    const int64_t rest = d == 0 ? 0 : at / size_[d];
    index[d] = at - rest * size_[d];
    offset += index[d] * stride(tensor, d);
    at = rest;
  }
  return offset;
}

int64_t Space::contiguous(size_t tensor, int64_t at, int64_t count) const {
  if (dense_[tensor] || numel_ == 0) return at;
  int64_t index[program::most_axes];
  const int64_t offset = locate(tensor, at, index);
  const bool is_in_row = index[axes_ - 1] + count <= size_[axes_ - 1];
  return count == 1 || (is_in_row && stride(tensor, axes_ - 1) == 1) ? offset : -1;
}

// Calls f(offset, stride, count) for each part of a row of the innermost axis.
template <typename F>
void Space::for_pieces(size_t tensor, int64_t at, int64_t count, const F& f) const {
  if (axes_ == 0) return f(int64_t(0), int64_t(1), count);
  int64_t index[program::most_axes];
  int64_t offset = locate(tensor, at, index);
  const int last = axes_ - 1;
  while (count > 0) {
    const int64_t piece = std::min(count, size_[last] - index[last]);
    f(offset, stride(tensor, last), piece);
    count -= piece;
    index[last] += piece;
    offset += piece * stride(tensor, last);
    for (int d = last; d > 0 && index[d] == size_[d]; --d) {
      offset += stride(tensor, d - 1) - size_[d] * stride(tensor, d);
      index[d] = 0;
      ++index[d - 1];
    }
  }
}

void Space::gather(size_t tensor, const void* data, int64_t size, int64_t at, int64_t count, void* to) const {
  char* target = static_cast<char*>(to);
  for_pieces(tensor, at, count, [&](int64_t offset, int64_t stride, int64_t piece) {
    copy(size, static_cast<const char*>(data) + offset * size, stride, target, 1, piece);
    target += piece * size;
  });
}

void Space::scatter(size_t tensor, const void* from, int64_t size, int64_t at, int64_t count, void* data) const {
  const char* source = static_cast<const char*>(from);
  for_pieces(tensor, at, count, [&](int64_t offset, int64_t stride, int64_t piece) {
    copy(size, source, 1, static_cast<char*>(data) + offset * size, stride, piece);
    source += piece * size;
  });
}

}  // namespace fourfold::cpu
