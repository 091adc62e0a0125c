#include "depthwise.h"

#include <algorithm>
#include <cstdint>

namespace fourfold::graph {
namespace {

// The k in [0, count) for which 0 <= k * stride + offset < size.
Places places_within(int64_t offset, int64_t stride, int64_t count, int64_t size) {
  const int64_t begin = offset >= 0 ? 0 : (-offset + stride - 1) / stride;
  const int64_t end = offset >= size ? 0 : std::min(count, (size - offset + stride - 1) / stride);
  return {begin, std::max(begin, end)};
}

// Elements of an image and of a result that one weight connects: of the smaller one, which has an element for each
// position of the window, and of the larger one.
struct Line {
  int64_t small, large, count, place;
};

c10::SmallVector<Line, 32> lines_of(const Convolution& of, const Sizes& small, const Sizes& large, const Sizes& small_steps, const Sizes& large_steps) {
  c10::SmallVector<Line, 32> lines;
  int64_t place = 0;
  for_each_place(of.kernel, [&](const Sizes& window) {
    int64_t offset[most_dims];
    Places range[most_dims];
    for (size_t d = 0; d < most_dims; ++d) {
      offset[d] = window.at[d] * of.dilation.at[d] - of.padding.at[d];
      range[d] = places_within(offset[d], of.stride.at[d], small.at[d], large.at[d]);
    }
    const auto at = [](const Sizes& index, const Sizes& steps) {
      return index.at[0] * steps.at[0] + index.at[1] * steps.at[1] + index.at[2] * steps.at[2];
    };
    for (int64_t i = range[0].begin; i < range[0].end; ++i) {
      for (int64_t j = range[1].begin; j < range[1].end; ++j) {
        const int64_t k = range[2].begin;
        const Sizes in_large{{i * of.stride.at[0] + offset[0], j * of.stride.at[1] + offset[1], k * of.stride.at[2] + offset[2]}};
        if (range[2].end > k) lines.push_back({at({{i, j, k}}, small_steps), at(in_large, large_steps), range[2].end - k, place});
      }
    }
    ++place;
  });
  return lines;
}

template <typename T>
void add_line(T factor, const T* from, int64_t step, T* to, int64_t to_step, int64_t count) {
  if (step == 1 && to_step == 1) {
    for (int64_t k = 0; k < count; ++k) to[k] += factor * from[k];
  } else {
    for (int64_t k = 0; k < count; ++k) to[k * to_step] += factor * from[k * step];
  }
}

}  // namespace

template <typename T>
void convolve_depthwise(const Convolution& of, T* result) {
  const auto* const x = static_cast<const T*>(of.x.const_data_ptr());
  const auto* const weight = static_cast<const T*>(of.weight.const_data_ptr());
  const auto* const bias = of.bias.defined() ? static_cast<const T*>(of.bias.const_data_ptr()) : nullptr;
  const int64_t positions = of.positions.product(), places = of.kernel.product(), each = of.outputs / of.groups;
  const int64_t apart = of.is_last ? of.outputs : 1;  // neighbours in the result
  const Sizes steps = last_strides(of.x, of.dims);
  const Sizes to_steps{{of.positions.at[1] * of.positions.at[2] * apart, of.positions.at[2] * apart, apart}};
  const auto lines = of.is_transposed ? lines_of(of, of.image, of.positions, steps, to_steps)
                                      : lines_of(of, of.positions, of.image, to_steps, steps);
  const int64_t small_step = (of.is_transposed ? steps : to_steps).at[2];
  const int64_t image = of.x.stride(0), channel = of.x.stride(1);
  const int64_t large_step = of.stride.at[2] * (of.is_transposed ? to_steps : steps).at[2];
  for (int64_t row = 0; row < of.batch * of.outputs; ++row) {
    const int64_t n = row / of.outputs, o = row % of.outputs;
    const T* const from = x + n * image + o / each * channel;
    T* const to = result + (of.is_last ? n * positions * of.outputs + o : row * positions);
    for (int64_t p = 0; p < positions; ++p) to[p * apart] = bias == nullptr ? T(0) : bias[o];
    for (const Line& line : lines) {
      const T factor = weight[o * places + line.place];
      if (of.is_transposed) {
        add_line(factor, from + line.small, small_step, to + line.large, large_step, line.count);
      } else {
        add_line(factor, from + line.large, large_step, to + line.small, small_step, line.count);
      }
    }
  }
}

template void convolve_depthwise(const Convolution& of, float* result);
template void convolve_depthwise(const Convolution& of, double* result);

}  // namespace fourfold::graph
