#include "loop_results.h"

#include <ATen/ops/stack.h>
#include <c10/util/strides.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "outputs.h"

namespace fourfold::graph {
namespace {

void write(const at::Tensor& rows, int64_t row, const at::Tensor& value) {
  const auto sizes = rows.sizes().slice(1);
  TORCH_CHECK_VALUE(value.sizes() == sizes, "loop: expected a result of shape ", text_of(sizes), " in every step, but got ",
                    text_of(value.sizes()));
  const bool is_same = value.is_contiguous() && value.scalar_type() == rows.scalar_type() && !value.is_neg() && !value.is_conj();
  if (is_same && value.device().is_cpu() && rows.device().is_cpu()) {
    const size_t bytes = value.nbytes();
    if (bytes > 0) std::memcpy(static_cast<char*>(rows.mutable_data_ptr()) + row * bytes, value.const_data_ptr(), bytes);
    return;
  }
  element(rows, row).copy_(value);
}

// Allocates contiguous rows shaped like a value.
at::Tensor rows_like(const at::Tensor& value, int64_t count) {
  std::vector<int64_t> sizes{count};
  sizes.insert(sizes.end(), value.sizes().begin(), value.sizes().end());
  return new_memory(sizes, c10::contiguous_strides(sizes), value.scalar_type(), value.device());
}

bool shares_memory(const at::Tensor& tensor, const c10::IValue& value) {
  return value.isTensor() && value.toTensor().is_alias_of(tensor);
}

}  // namespace

at::Tensor element(const at::Tensor& series, int64_t step) {
  return series.as_strided(
      series.sizes().slice(1), series.strides().slice(1), series.storage_offset() + step * series.stride(0));
}

LoopResults::LoopResults(const LoopStep& loop, LoopCall& call, bool is_plain)
    : loop_(loop), call_(call), is_plain_(is_plain) {
  call.rows.resize(loop.trails.size());
  for (size_t k = 0; is_plain && k < loop.feeds.size(); ++k) {
    if (!loop.trails[loop.feeds[k]]) continue;
    at::Tensor& rows = call.rows[loop.feeds[k]];
    rows = rows_like(call.states[k].toTensor(), call.steps + 1);
    write(rows, loop.reverse ? call.steps : 0, call.states[k].toTensor());
  }
}

void LoopResults::add(const Values& results, int64_t step) {
  call_.rows.resize(results.size());
  steps_.resize(results.size());
  for (size_t k = 0; k < results.size(); ++k) {
    if (!keeps(k)) continue;
    const at::Tensor& result = results[k].toTensor();
    if (!is_plain_) {
      steps_[k].push_back(result);
      continue;
    }
    at::Tensor& rows = call_.rows[k];
    if (!rows.defined()) rows = rows_like(result, call_.steps);
    write(rows, k < loop_.trails.size() && !loop_.reverse ? step + 1 : step, result);
  }
}

// The last values are copied if they share memory with an input or an earlier result.
void LoopResults::append(const Values& last, Values& values) {
  const size_t first = values.size();
  for (size_t k = 0; k < last.size(); ++k) {
    if (!keeps(k)) {
      const at::Tensor& value = last[k].toTensor();
      const auto is_shared = [&value](const c10::IValue& other) { return shares_memory(value, other); };
      const bool is_input = std::any_of(
          loop_.inputs.begin(), loop_.inputs.end(), [&](size_t index) { return is_shared(values[index]); });
      const bool is_twice = std::any_of(values.begin() + static_cast<int64_t>(first), values.end(), is_shared);
      values.emplace_back(!is_plain_ || is_input || is_twice ? value.clone() : value);
    } else if (is_plain_) {
      values.emplace_back(std::move(call_.rows[k]));
    } else {
      values.emplace_back(stacked(k));
    }
  }
}

at::Tensor LoopResults::stacked(size_t result) {
  std::vector<at::Tensor>& rows = steps_[result];
  if (result < loop_.trails.size()) {
    const auto state = std::find(loop_.feeds.begin(), loop_.feeds.end(), result) - loop_.feeds.begin();
    rows.insert(rows.begin(), call_.states[static_cast<size_t>(state)].toTensor());
  }
  if (loop_.reverse) std::reverse(rows.begin(), rows.end());
  return at::stack(rows);
}

}  // namespace fourfold::graph
