#include "graph.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <optional>
#include <string>

#include "memory.h"

namespace fourfold::graph {

void ProgramStep::run(Values& values) const {
  const size_t first = values.size();
  run_program_or_operators(values);
  if (updates.empty()) return;
  const at::NoGradGuard no_grad;
  for (const Update& update : updates) {
    const at::Tensor& result = values[first + update.output].toTensor();
    const at::Tensor& updated = values[update.value].toTensor();
    if (!result.is_same(updated)) updated.copy_(result);
  }
}

void ProgramStep::run_program_or_operators(Values& values) const {
  const auto operators = [&](const c10::Error* error) {
    Values given;
    given.reserve(inputs.size());
    for (const size_t index : inputs) given.push_back(values[index]);
    by_operators(error, given, values);
  };
  if (program.program == nullptr) return operators(nullptr);
  std::vector<const c10::IValue*> read;
  std::vector<at::Tensor> written;
  read.reserve(inputs.size());
  for (const size_t index : inputs) read.push_back(&values[index]);
  try {
    run_program(program, read, written, targets(values));
  } catch (const c10::Error& error) {
    return operators(&error);
  }
  for (at::Tensor& tensor : written) values.emplace_back(std::move(tensor));
}

std::vector<Target> ProgramStep::targets(const Values& values) const {
  std::vector<Target> found;
  for (const Update& update : updates) {
    if (update.output >= found.size()) found.resize(update.output + 1);
    found[update.output] = {values[update.value].toTensor(), update.is_new};
  }
  return found;
}

void ItemStep::run(Values& values) const {
  const auto items = values[list].toListRef();
  TORCH_CHECK_VALUE(item < items.size(), "graph: expected a list of more than ", std::to_string(item), " tensors, but got ",
                    std::to_string(items.size()));
  values.emplace_back(items[item]);
}

void ConcatenationStep::run(Values& values) const {
  // With tangents torch has to know that the parts are views: what operators write into them has tangents too.
  const auto is_dual = [](const c10::IValue& value) { return value.isTensor() && has_tangent(value.toTensor()); };
  std::optional<at::AutoDispatchBelowADInplaceOrView> no_autograd;
  if (std::none_of(values.begin(), values.end(), is_dual)) no_autograd.emplace();
  const at::Tensor whole = new_memory(sizes, strides, dtype, device);
  values.emplace_back(whole);
  std::vector<int64_t> own = sizes;
  int64_t begin = 0;
  for (const int64_t length : lengths) {
    own[static_cast<size_t>(dim)] = length;
    values.emplace_back(whole.as_strided(own, strides, begin * strides[static_cast<size_t>(dim)]));
    begin += length;
  }
}

at::Tensor InputLayout::of(const at::Tensor& tensor) const {
  int64_t least = 1;
  bool lies_so = true;
  for (auto dim = order.rbegin(); dim != order.rend(); ++dim) {
    const int64_t size = tensor.size(*dim), stride = tensor.stride(*dim);
    if (size == 1 || (!is_dense && stride == 0)) continue;
    lies_so = lies_so && (is_dense ? stride == least : stride >= least);
    least = size * stride;
  }
  if (lies_so) return tensor;
  std::vector<int64_t> back(order.size());
  for (size_t k = 0; k < order.size(); ++k) back[static_cast<size_t>(order[k])] = static_cast<int64_t>(k);
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  return tensor.permute(order).contiguous().permute(back);
}

void CallStep::run(Values& values) const {
  Values given;
  given.reserve(inputs.size());
  for (const size_t index : inputs) given.push_back(values[index]);
  for (c10::IValue& result : graph->run(std::move(given))) values.push_back(std::move(result));
}

Values CompiledGraph::run(Values inputs, bool records) const {
  for (const InputLayout& layout : layouts) {
    if (inputs[layout.index].isTensor()) inputs[layout.index] = layout.of(inputs[layout.index].toTensor());
  }
  if (!has_plan()) return function(std::move(inputs));
  const OperatorsReuseMemory reuse;
  if (std::optional<Values> results = steady_->run(*this, inputs, records)) return *std::move(results);
  return run_plan(std::move(inputs), records);
}

Values CompiledGraph::run_plan(Values values, bool records) const {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  for (const GraphStep& step : steps) {
    run_step(step, values, records);
    for (const size_t index : step.last) values[index] = {};
  }
  return results_of(values);
}

void CompiledGraph::run_step(const GraphStep& step, Values& values, bool records) const {
  if (const auto* operation = std::get_if<OperatorStep>(&step.call); operation != nullptr && !records) {
    const at::AutoDispatchBelowADInplaceOrView no_autograd;
    operation->run(values);
  } else {
    std::visit([&values](const auto& call) { call.run(values); }, step.call);
  }
}

Values CompiledGraph::record(Values values, std::vector<size_t>& firsts) const {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  for (const GraphStep& step : steps) {
    firsts.push_back(values.size());
    run_step(step, values, false);
  }
  return values;
}

Values CompiledGraph::results_of(const Values& values) const {
  Values results;
  results.reserve(outputs.size());
  for (const int64_t index : outputs) results.push_back(index < 0 ? c10::IValue() : values[static_cast<size_t>(index)]);
  return results;
}

}  // namespace fourfold::graph
