#include "loop_step.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <cstring>

#include "graph.h"
#include "memory.h"
#include "values.h"

namespace fourfold::bindings {
namespace {

bool is_plain(const c10::IValue& value) {
  if (!value.isTensor()) return true;
  const at::Tensor& tensor = value.toTensor();
  return tensor.device().is_cpu() && tensor.layout() == at::kStrided && !is_wrapped(tensor) &&
         !tensor.unsafeGetTensorImpl()->is_python_dispatch();
}

// One step's element of a tensor whose first dimension are the steps.
at::Tensor element(const at::Tensor& series, int64_t step) {
  return series.as_strided(
      series.sizes().slice(1), series.strides().slice(1), series.storage_offset() + step * series.stride(0));
}

void write(const at::Tensor& rows, int64_t row, const at::Tensor& value) {
  if (value.is_contiguous() && value.scalar_type() == rows.scalar_type() && !value.is_neg() && !value.is_conj()) {
    const size_t bytes = value.nbytes();
    if (bytes > 0) std::memcpy(static_cast<char*>(rows.mutable_data_ptr()) + row * bytes, value.const_data_ptr(), bytes);
    return;
  }
  element(rows, row).copy_(value);
}

// Contiguous rows like a value.
at::Tensor rows_like(const at::Tensor& value, int64_t count) {
  std::vector<int64_t> sizes{count};
  sizes.insert(sizes.end(), value.sizes().begin(), value.sizes().end());
  constexpr c10::DispatchKeySet cpu(c10::DispatchKey::CPU);
  return at::detail::empty_generic(sizes, allocator_of_results(), cpu, value.scalar_type(), c10::nullopt);
}

bool shares_memory(const at::Tensor& tensor, const Values& values, const std::vector<size_t>& among) {
  return std::any_of(among.begin(), among.end(), [&](size_t index) {
    return values[index].isTensor() && values[index].toTensor().is_alias_of(tensor);
  });
}

}  // namespace

void LoopStep::run(Values& values) const {
  if (!std::all_of(inputs.begin(), inputs.end(), [&values](size_t index) { return is_plain(values[index]); })) {
    return run_in_python(values);
  }
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  const int64_t steps = values[inputs[0]].toInt();
  Values states;
  for (size_t k = 0; k < feeds.size(); ++k) states.push_back(values[inputs[1 + k]]);
  std::vector<at::Tensor> sequences;
  for (size_t k = 0; k < series; ++k) sequences.push_back(values[inputs[1 + feeds.size() + k]].toTensor());
  const std::vector<size_t> invariants(inputs.begin() + static_cast<int64_t>(1 + feeds.size() + series), inputs.end());
  std::vector<at::Tensor> rows(trails.size());
  for (size_t k = 0; k < feeds.size(); ++k) {
    if (!trails[feeds[k]]) continue;
    rows[feeds[k]] = rows_like(states[k].toTensor(), steps + 1);
    write(rows[feeds[k]], reverse ? steps : 0, states[k].toTensor());
  }
  Values results;
  for (int64_t n = 0; n < steps; ++n) {
    const int64_t step = reverse ? steps - 1 - n : n;
    Values given;
    given.reserve(feeds.size() + series + invariants.size());
    for (c10::IValue& state : states) given.emplace_back(std::move(state));
    for (const at::Tensor& sequence : sequences) given.emplace_back(element(sequence, step));
    for (const size_t index : invariants) given.push_back(values[index]);
    results = body->run(std::move(given));
    if (n == 0) rows.resize(results.size());
    for (size_t k = 0; k < results.size(); ++k) {
      const bool is_state = k < trails.size();
      if (is_state && !trails[k]) continue;
      const at::Tensor& result = results[k].toTensor();
      if (!rows[k].defined()) rows[k] = rows_like(result, steps);
      write(rows[k], is_state && !reverse ? step + 1 : step, result);
    }
    for (size_t k = 0; k < feeds.size(); ++k) states[k] = results[feeds[k]];
  }
  for (size_t k = 0; k < rows.size(); ++k) {
    if (rows[k].defined()) {
      values.emplace_back(std::move(rows[k]));
      continue;
    }
    const at::Tensor& last = results[k].toTensor();
    const bool is_own = !shares_memory(last, values, inputs);
    values.emplace_back(is_own ? last : last.clone());
  }
}

void LoopStep::run_in_python(Values& values) const {
  const pybind11::gil_scoped_acquire held_gil;
  pybind11::tuple given(inputs.size());
  for (size_t k = 0; k < inputs.size(); ++k) {
    given[k] = pybind11::reinterpret_steal<pybind11::object>(object_of(values[inputs[k]]));
  }
  const pybind11::object results = pybind11::handle(loop->get())(*given);
  for (const auto result : results) values.push_back(value_of(result.ptr()));
}

}  // namespace fourfold::bindings
