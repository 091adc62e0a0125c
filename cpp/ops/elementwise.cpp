#include "ops/elementwise.h"

#include <algorithm>

namespace fourfold {
namespace {

int64_t broadcast_stride(const Tensor& x, int64_t from_last) {
  const int64_t d = x.dim() + from_last;
  return d < 0 || x.sizes()[d] == 1 ? 0 : x.strides()[d];
}

bool mergeable(const Elementwise& job, const Elementwise::Axis& outer, const Elementwise::Axis& inner) {
  for (int k = 0; k <= job.inputs; ++k) {
    if (outer.stride[k] != inner.stride[k] * inner.size) return false;
  }
  return true;
}

void merge_axes(Elementwise& job) {
  int count = 0;
  for (int d = 0; d < job.axes; ++d) {
    Elementwise::Axis inner = job.axis[d];
    if (count > 0 && mergeable(job, job.axis[count - 1], inner)) inner.size *= job.axis[--count].size;
    job.axis[count++] = inner;
  }
  job.axes = count;
}

bool contiguous_and_like(const Tensor& x, const Tensor& out) {
  return std::ranges::equal(x.sizes(), out.sizes()) && x.is_contiguous();
}

}  // namespace

Elementwise elementwise(
    const Tensor& out, std::initializer_list<const Tensor*> inputs, std::initializer_list<double> scalars) {
  Elementwise job;
  job.place = place_of(out);
  job.kind = kind_of(out.scalar_type());
  job.element_size = static_cast<int64_t>(out.element_size());
  job.numel = out.numel();
  job.inputs = static_cast<int>(inputs.size());
  std::copy(scalars.begin(), scalars.end(), job.scalar);
  job.out = out_data(out);
  std::transform(inputs.begin(), inputs.end(), job.in, [](const Tensor* x) { return data_of(*x); });
  job.axes = 0;
  if (job.numel <= 1) return job;  // nothing is read of an empty tensor, whose other sizes may overflow

  if (out.is_contiguous() &&
      std::all_of(inputs.begin(), inputs.end(), [&](const Tensor* x) { return contiguous_and_like(*x, out); })) {
    Elementwise::Axis& all = job.axis[job.axes++];
    all.size = job.numel;
    std::fill(std::begin(all.stride), std::end(all.stride), 1);
    return job;
  }
  const auto sizes = out.sizes();
  const auto strides = out.strides();
  const auto dim = static_cast<int64_t>(sizes.size());
  for (int64_t d = 0; d < dim; ++d) {
    if (sizes[d] == 1) continue;
    // Sorts the axes by out's strides, which all differ because out's elements don't overlap.
    int place = job.axes++;
    for (; place > 0 && job.axis[place - 1].stride[0] < strides[d]; --place) job.axis[place] = job.axis[place - 1];
    job.axis[place] = {sizes[d], {strides[d]}};
    for (int k = 0; k < job.inputs; ++k) job.axis[place].stride[k + 1] = broadcast_stride(*inputs.begin()[k], d - dim);
  }
  merge_axes(job);
  return job;
}

}  // namespace fourfold
