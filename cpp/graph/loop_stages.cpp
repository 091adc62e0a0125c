#include "loop_stages.h"

#include <ATen/autocast_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <string>
#include <utility>

#include "graph.h"
#include "loop_results.h"
#include "outputs.h"

namespace fourfold::graph {
namespace {

bool is_readable(const at::Tensor& tensor) {
  if (!tensor.defined()) return true;  // an unused gradient
  return tensor.device().is_cpu() && tensor.layout() == at::kStrided && !tensor.is_neg() && !tensor.is_conj() &&
         !tensor._is_zerotensor();
}

bool lies_as(const at::Tensor& tensor, const at::Tensor& other) {
  if (tensor.sizes() != other.sizes()) return false;
  for (int64_t d = 0; d < tensor.dim(); ++d) {
    if (tensor.size(d) > 1 && tensor.stride(d) != other.stride(d)) return false;
  }
  return true;
}

bool is_defined(const c10::IValue& value) { return value.isTensor() && value.toTensor().defined(); }

MovingTensor shifted(const MovingTensor& moving, int64_t offset) {
  const at::Tensor& tensor = moving.tensor;
  return {tensor.as_strided(tensor.sizes(), tensor.strides(), tensor.storage_offset() + offset), moving.stride, moving.period};
}

// The memory of the same value in the previous step.
MovingTensor before(const MovingTensor& moving) {
  const bool alternates = moving.period == 2;
  MovingTensor found = shifted(moving, alternates ? moving.stride : -moving.stride);
  if (alternates) found.stride = -moving.stride;
  return found;
}

// New memory for a value in `count` steps.
at::Tensor new_rows(const at::Tensor& value, int64_t count) {
  std::vector<int64_t> sizes{count};
  sizes.insert(sizes.end(), value.sizes().begin(), value.sizes().end());
  return at::empty(sizes, value.options());
}

}  // namespace

Obstacle LoopStages::prepare(int64_t begin, const Values& results) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  begin_ = begin;
  Obstacle obstacle = find_roots();
  if (!obstacle.empty()) return obstacle;
  find_products_of_input();
  find_added_products();
  obstacle = allocate(results);
  return obstacle.empty() ? add_stages() : obstacle;
}

Obstacle LoopStages::run_steps(int64_t steps) const {
  const int32_t failed = fourfold_stages_run(
      stages_.data(), static_cast<int32_t>(stages_.size()), steps, static_cast<int32_t>(c10::DeviceType::CPU));
  TORCH_CHECK_VALUE(failed != 1, fourfold_program_error());
  return failed == 0 ? "" : fourfold_program_error();
}

Obstacle LoopStages::run(Values& results) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const int64_t steps = call_.steps - begin_;
  RECORD_FUNCTION("fourfold_loop_in_stages", std::vector<c10::IValue>());
  Obstacle obstacle = run_steps(steps);
  if (!obstacle.empty()) return obstacle;
  for (size_t k = 0; k < states_.size(); ++k) {
    if (loop_.trails[k]) continue;
    const MovingTensor& state = states_[k];  // where the step after the last one would read
    const int64_t offset = (state.period != 0 ? steps % state.period : steps) * state.stride;
    results[k] = shifted(state, offset).tensor.clone();
  }
  return {};
}

bool LoopStages::is_invariant(size_t value) const {
  const size_t root = roots_[value];
  return root >= loop_.feeds.size() + call_.series.size() && is_given(root);
}

Obstacle LoopStages::find_roots() {
  roots_.resize(recorded_.size());
  for (size_t value = 0; value < recorded_.size(); ++value) {
    roots_[value] = value;
    if (recorded_[value].isTensor() && !is_readable(recorded_[value].toTensor())) {
      return "a tensor is on another device, sparse, conjugated or negated lazily, or has no memory";
    }
  }
  for (size_t k = 0; k < loop_.body->steps.size(); ++k) {
    const auto& call = loop_.body->steps[k].call;
    const size_t first = firsts_[k], end = k + 1 < firsts_.size() ? firsts_[k + 1] : recorded_.size();
    if (const auto* program = std::get_if<ProgramStep>(&call)) {
      if (!program->updates.empty()) return "a program writes into a given tensor, or a part of a concatenation";
    } else if (const auto* item = std::get_if<ItemStep>(&call)) {
      roots_[first] = roots_[item->list];
    } else if (const auto* operation = std::get_if<OperatorStep>(&call)) {
      Obstacle obstacle = find_roots_of(*operation, first, end);
      if (!obstacle.empty()) return obstacle;
    } else if (std::holds_alternative<ConcatenationStep>(call)) {
      return "programs write parts of a concatenation";
    } else if (!std::holds_alternative<ConstantStep>(call) && !std::holds_alternative<NumberStep>(call)) {
      return "the step calls another graph";
    }
  }
  return {};
}

// Sets the roots of an operator's results that are views.
Obstacle LoopStages::find_roots_of(const OperatorStep& step, size_t first, size_t end) {
  const std::string name = name_of(step);
  if (step.handle.schema().is_mutable()) return name + " changes its inputs in place";
  if (has_sizes_of_data(step, recorded_)) {
    return "the size of " + name + "'s result depends on data";
  }
  if (name == "as_strided") return "as_strided counts from the beginning of the memory";  // not from a step's element
  const std::vector<size_t> read = read_by(step);
  const auto base_of = [&](const at::Tensor& result) {
    const auto base = std::find_if(read.begin(), read.end(), [&](size_t index) {
      return result.defined() && is_defined(recorded_[index]) && recorded_[index].toTensor().is_alias_of(result);
    });
    return base == read.end() ? recorded_.size() : roots_[*base];
  };
  for (size_t value = first; value < end; ++value) {
    const bool is_list = recorded_[value].isTensorList();
    if (!is_list && !recorded_[value].isTensor()) return name + " returns a number";
    if (is_list && recorded_[value].toTensorVector().empty()) return name + " returns an empty list";
    const size_t base = base_of(is_list ? recorded_[value].toTensorVector()[0] : recorded_[value].toTensor());
    if (base < recorded_.size()) {
      roots_[value] = base;
    } else if (is_list) {
      return name + " returns a list of new tensors";
    }
  }
  return {};
}

// Assigns memory to states and values: results are computed in place, in their rows, where possible; others are copied
// there.
Obstacle LoopStages::allocate(const Values& results) {
  memory_.resize(recorded_.size());
  states_.resize(loop_.trails.size());
  const int64_t sign = loop_.reverse ? -1 : 1, first = loop_.reverse ? call_.steps - 1 - begin_ : begin_;
  for (size_t k = 0; k < results.size(); ++k) {
    const auto value = static_cast<size_t>(loop_.body->outputs[k]);
    if (loop_.body->outputs[k] < 0 || !is_defined(recorded_[value])) return "a result is no tensor";
    const bool is_state = k < loop_.trails.size();
    if (is_state && !loop_.trails[k]) continue;
    const at::Tensor& rows = call_.rows[k];
    const MovingTensor moving{element(rows, is_state && !loop_.reverse ? first + 1 : first), sign * rows.stride(0)};
    if (!compute_in(value, moving)) copies_.emplace_back(value, moving);
    if (is_state) states_[k] = before(moving);
  }
  allocate_states(results);
  for (size_t value = 0; value < recorded_.size(); ++value) {
    if (!is_defined(recorded_[value]) || roots_[value] != value || memory_[value].tensor.defined()) continue;
    memory_[value] = memory_of(value);
    if (!lies_as(memory_[value].tensor, recorded_[value].toTensor())) return "a state's memory layout changes";
  }
  return {};
}

// Of the states of which only the last value is kept.
void LoopStages::allocate_states(const Values& results) {
  for (size_t k = 0; k < loop_.trails.size(); ++k) {
    if (loop_.trails[k]) continue;
    const auto value = static_cast<size_t>(loop_.body->outputs[k]);
    if (!is_given(roots_[value]) && roots_[value] == value && memory_[value].tensor.defined()) {
      states_[k] = before(memory_[value]);  // shared with a result, or with another state
      continue;
    }
    const at::Tensor& initial = results[k].toTensor();
    const at::Tensor rows = new_rows(initial, 2);
    const MovingTensor moving{element(rows, 1), -rows.stride(0), 2};
    states_[k] = before(moving);
    states_[k].tensor.copy_(initial);
    if (!compute_in(value, moving)) copies_.emplace_back(value, moving);
  }
}

MovingTensor LoopStages::memory_of(size_t value) const {
  const int64_t sign = loop_.reverse ? -1 : 1, first = loop_.reverse ? call_.steps - 1 - begin_ : begin_;
  const at::Tensor& recorded = recorded_[value].toTensor();
  const size_t series = value - loop_.feeds.size();
  if (value < loop_.feeds.size()) return states_[loop_.feeds[value]];
  if (series < call_.series.size()) return {element(call_.series[series], first), sign * call_.series[series].stride(0)};
  if (is_given(value)) return {recorded};
  const auto found = of_input_.find(value);
  if (found == of_input_.end() || found->second.together == 1) {
    return {at::empty_strided(recorded.sizes(), recorded.strides(), recorded.options())};
  }
  const int64_t together = found->second.together;
  const at::Tensor rows = new_rows(recorded, together);
  return {element(rows, loop_.reverse ? together - 1 : 0), sign * rows.stride(0), together};
}

bool LoopStages::compute_in(size_t value, const MovingTensor& memory) {
  const bool is_free = !is_given(value) && roots_[value] == value && !memory_[value].tensor.defined();
  if (!is_free || !lies_as(memory.tensor, recorded_[value].toTensor())) return false;
  memory_[value] = memory;
  return true;
}

bool LoopStages::find(size_t value, MovingTensor& found) const {
  const size_t root = roots_[value];
  const MovingTensor& memory = memory_[root];
  if (!memory.tensor.defined() || !is_defined(recorded_[value])) return false;
  found = memory;
  if (value == root) return true;
  const at::Tensor& own = recorded_[value].toTensor();
  if (own.scalar_type() != memory.tensor.scalar_type()) return false;  // offsets count elements of another size
  const int64_t offset = own.storage_offset() - recorded_[root].toTensor().storage_offset();
  found.tensor = memory.tensor.as_strided(own.sizes(), own.strides(), memory.tensor.storage_offset() + offset);
  return true;
}

Obstacle LoopStages::add_stages() {
  for (size_t k = 0; k < loop_.body->steps.size(); ++k) {
    const auto& call = loop_.body->steps[k].call;
    const size_t first = firsts_[k], end = k + 1 < firsts_.size() ? firsts_[k + 1] : recorded_.size();
    Obstacle obstacle;
    if (const auto* program = std::get_if<ProgramStep>(&call)) obstacle = add(*program, first);
    if (const auto* operation = std::get_if<OperatorStep>(&call)) obstacle = add(*operation, first, end);
    if (!obstacle.empty()) return obstacle;
    steps_of_.resize(stages_.size(), static_cast<int64_t>(k));
  }
  for (const auto& [value, to] : copies_) {
    MovingTensor from;
    if (!find(value, from) || from.tensor.is_complex()) return "a result that is copied is complex, or a view as another dtype";
    add_stage(fourfold_stage_copy, {describe(from)}, {to});
  }
  steps_of_.resize(stages_.size(), -1);
  return {};
}

Obstacle LoopStages::add(const ProgramStep& step, size_t first) {
  std::vector<fourfold_moving_tensor> inputs;
  std::vector<MovingTensor> outputs;
  if (step.program.program == nullptr) return "a program can't run here";
  for (size_t k = 0; k < step.inputs.size(); ++k) {
    const size_t index = step.inputs[k];
    const int32_t number = fourfold_program_number(step.program.program, static_cast<int32_t>(k));
    MovingTensor moving;
    if (number >= 0) {
      numbers_.push_back(bits_of(scalar_of(recorded_[index]), static_cast<at::ScalarType>(number)));
      inputs.push_back({{&numbers_.back(), number, 0, nullptr, nullptr, nullptr}, 0, 0});
    } else if (find(index, moving)) {
      inputs.push_back(describe(moving));
    } else {
      return "a program reads a view as another dtype";
    }
  }
  for (int32_t k = 0; k < fourfold_program_outputs(step.program.program); ++k) {
    const MovingTensor& output = memory_[first + static_cast<size_t>(k)];
    if (!output.tensor.defined()) return "a program has a result that is no tensor";
    outputs.push_back(output);
  }
  add_stage(fourfold_stage_program, std::move(inputs), outputs);
  stages_.back().program = step.program.program;
  stages_.back().name = step.program.name;
  return {};
}

Obstacle LoopStages::add(const OperatorStep& step, size_t first, size_t end) {
  const bool is_view = std::all_of(roots_.begin() + static_cast<int64_t>(first), roots_.begin() + static_cast<int64_t>(end),
                                   [first](size_t root) { return root < first; });
  if (is_view || without_stage_.count(first) > 0 || add_product(step, first)) return {};
  if (added_.count(first) > 0) return name_of(step) + " can't be computed together with the product that it adds";
  const std::vector<size_t> read = read_by(step);
  MovingTensor from;
  if (name_of(step) == "clone" && read.size() == 1 && find(read[0], from) && !from.tensor.is_complex()) {
    add_stage(fourfold_stage_copy, {describe(from)}, {memory_[first]});
    return {};
  }
  const bool have_memory = std::all_of(read.begin(), read.end(), [&](size_t index) {
    const c10::IValue& value = recorded_[index];
    return is_defined(value) ? find(index, from) : !value.isTensorList();
  });
  if (!have_memory) return name_of(step) + " reads a list, or a view as another dtype";
  calls_.push_back({&step, first, read, this, Values(recorded_.begin(), recorded_.begin() + static_cast<int64_t>(first))});
  add_stage(fourfold_stage_function, {}, {});
  stages_.back().function = run_operator;
  stages_.back().context = &calls_.back();
  if (std::optional<LoopLookup> lookup = lookup_of(step, first)) {
    lookup->otherwise = &calls_.back();
    lookups_.push_back(*lookup);
    stages_.back().function = run_lookup;
    stages_.back().context = &lookups_.back();
  }
  return {};
}

void LoopStages::add_stage(int32_t kind, std::vector<fourfold_moving_tensor> inputs, const std::vector<MovingTensor>& outputs) {
  fourfold_stage made{};
  made.kind = kind;
  made.together = 1;
  made.inputs = static_cast<int32_t>(inputs.size());
  made.outputs = static_cast<int32_t>(outputs.size());
  tensors_.push_back(std::move(inputs));
  for (const MovingTensor& output : outputs) tensors_.back().push_back(describe(output));
  made.tensors = tensors_.back().data();
  stages_.push_back(made);
}

fourfold_moving_tensor LoopStages::describe(MovingTensor moving) {
  held_.push_back(std::move(moving.tensor));  // the description points to its sizes
  return {described(held_.back()), moving.stride, moving.period};
}

void LoopStages::run_operator(void* context, int64_t step) {
  OperatorCall& call = *static_cast<OperatorCall*>(context);
  const LoopStages& stages = *call.stages;
  Values& values = call.values;
  values.resize(call.first);  // of an earlier step, or one that failed
  const auto now = [step](const MovingTensor& moving) {
    return moving.stride == 0 ? moving.tensor
                              : shifted(moving, (moving.period != 0 ? step % moving.period : step) * moving.stride).tensor;
  };
  for (const size_t index : call.inputs) {
    MovingTensor moving;
    if (stages.find(index, moving)) values[index] = now(moving);
  }
  call.step->run(values);
  for (size_t k = call.first; k < values.size(); ++k) {
    if (stages.roots_[k] == k && is_defined(values[k])) now(stages.memory_[k]).copy_(values[k].toTensor());
  }
}

std::vector<std::pair<int64_t, std::string>> LoopStages::texts() const {
  std::vector<std::pair<int64_t, std::string>> texts;
  for (size_t k = 0; k < stages_.size() - copies_.size(); ++k) {
    const auto* const operation = std::get_if<OperatorStep>(&loop_.body->steps[static_cast<size_t>(steps_of_[k])].call);
    texts.emplace_back(steps_of_[k], operation == nullptr ? "" : text_of(k, *operation));
  }
  if (!copies_.empty()) {
    texts.emplace_back(-1, std::to_string(copies_.size()) + (copies_.size() == 1 ? " result copied" : " results copied"));
  }
  return texts;
}

std::string LoopStages::text_of(size_t k, const OperatorStep& step) const {
  const fourfold_stage& stage = stages_[k];
  const std::string name = name_of(step);
  if (stage.kind == fourfold_stage_copy) return "a copy";
  if (stage.kind == fourfold_stage_function) return name + (stage.function == run_lookup ? " of rows" : " by PyTorch");
  if (stage.inputs > 3) {
    const size_t start = factors_at(static_cast<size_t>(steps_of_[k]))->start;
    const auto added = static_cast<size_t>(std::find(firsts_.begin(), firsts_.end(), start) - firsts_.begin());
    return name + " and " + name_of(std::get<OperatorStep>(loop_.body->steps[added].call)) +
           " in one pass with matrices packed once";
  }
  if (stage.together >= call_.steps) return name + " for all steps at once";
  const std::string several = ", for " + std::to_string(stage.together) + " steps at once";
  return name + " with a matrix packed once" + (stage.together > 1 ? several : "");
}

}  // namespace fourfold::graph
