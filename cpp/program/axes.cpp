#include "program/axes.h"

namespace fourfold::program {
namespace {

void add(Axes& axes, size_t first, size_t last, const std::vector<int64_t>& sizes,
         const std::vector<std::vector<int64_t>>& strides) {
  const size_t begin = axes.count();
  for (size_t a = first; a < last; ++a) {
    if (sizes[a] == 1) continue;
    bool merges = axes.count() > begin;
    for (size_t t = 0; t < strides.size() && merges; ++t) merges = axes.strides.back()[t] == strides[t][a] * sizes[a];
    if (merges) {
      axes.sizes.back() *= sizes[a];
    } else {
      axes.sizes.push_back(sizes[a]);
      axes.strides.emplace_back(strides.size());
    }
    for (size_t t = 0; t < strides.size(); ++t) axes.strides.back()[t] = strides[t][a];
  }
}

}  // namespace

Axes merged_axes(const Program& program, const std::vector<int64_t>& sizes, const std::vector<std::vector<int64_t>>& strides) {
  Axes axes;
  const auto outer = static_cast<size_t>(program.outer);
  add(axes, 0, outer, sizes, strides);
  axes.of_rows = axes.count();
  add(axes, outer, sizes.size(), sizes, strides);
  if (axes.count() == axes.of_rows) {
    axes.sizes.push_back(1);
    axes.strides.emplace_back(strides.size());
  }
  for (size_t a = 0; a < axes.count(); ++a) (a < axes.of_rows ? axes.rows : axes.columns) *= axes.sizes[a];
  return axes;
}

}  // namespace fourfold::program
