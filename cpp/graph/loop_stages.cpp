#include "loop_stages.h"

#include <ATen/autocast_mode.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <string>
#include <utility>

#include "graph.h"
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

Place shifted(const Place& place, int64_t offset) {
  const at::Tensor& tensor = place.tensor;
  return {tensor.as_strided(tensor.sizes(), tensor.strides(), tensor.storage_offset() + offset), place.stride, place.period};
}

// The place of the same value in the previous step.
Place before(const Place& place) {
  const bool alternates = place.period == 2;
  Place found = shifted(place, alternates ? place.stride : -place.stride);
  if (alternates) found.stride = -place.stride;
  return found;
}

at::Tensor row_of(const at::Tensor& rows, int64_t row) {
  return rows.as_strided(rows.sizes().slice(1), rows.strides().slice(1), rows.storage_offset() + row * rows.stride(0));
}

}  // namespace

bool LoopStages::run(int64_t begin, Values& results) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  if (!find_roots()) return false;
  find_products_of_input();
  find_added_products();
  compute_small_products();
  if (!give_homes(begin, results) || !add_stages()) return false;
  const int64_t steps = run_.steps - begin;
  RECORD_FUNCTION("fourfold_loop_in_stages", std::vector<c10::IValue>());
  const int32_t failed = fourfold_stages_run(
      stages_.data(), static_cast<int32_t>(stages_.size()), steps, static_cast<int32_t>(c10::DeviceType::CPU));
  TORCH_CHECK_VALUE(failed != 1, fourfold_program_error());
  if (failed != 0) return false;
  for (size_t k = 0; k < states_.size(); ++k) {
    if (loop_.trails[k]) continue;
    const Place& place = states_[k];  // where the step after the last one would read
    const int64_t offset = (place.period != 0 ? steps % place.period : steps) * place.stride;
    results[k] = shifted(place, offset).tensor.clone();
  }
  return true;
}

bool LoopStages::is_invariant(size_t value) const {
  const size_t root = roots_[value];
  return root >= loop_.feeds.size() + run_.sequences.size() && is_given(root);
}

bool LoopStages::find_roots() {
  roots_.resize(recorded_.size());
  for (size_t value = 0; value < recorded_.size(); ++value) {
    roots_[value] = value;
    if (recorded_[value].isTensor() && !is_readable(recorded_[value].toTensor())) return false;
  }
  for (size_t k = 0; k < loop_.body->steps.size(); ++k) {
    const auto& call = loop_.body->steps[k].call;
    const size_t first = firsts_[k], end = k + 1 < firsts_.size() ? firsts_[k + 1] : recorded_.size();
    if (const auto* program = std::get_if<ProgramStep>(&call)) {
      if (!program->updates.empty()) return false;
    } else if (const auto* item = std::get_if<ItemStep>(&call)) {
      roots_[first] = roots_[item->list];
    } else if (const auto* operation = std::get_if<OperatorStep>(&call)) {
      if (!has_root_of(*operation, first, end)) return false;
    } else if (!std::holds_alternative<ConstantStep>(call) && !std::holds_alternative<NumberStep>(call)) {
      return false;
    }
  }
  return true;
}

// Sets the roots of an operator's results that are views. False if it mutates arguments, mixes views and new tensors in
// a list, or returns tensors whose sizes may differ between steps.
bool LoopStages::has_root_of(const OperatorStep& step, size_t first, size_t end) {
  const bool depends_on_data =
      step.handle.hasTag(at::Tag::dynamic_output_shape) || step.handle.hasTag(at::Tag::data_dependent_output);
  // The offset of as_strided isn't relative to a step's element.
  const bool is_absolute = step.handle.operator_name().name == "aten::as_strided";
  if (step.handle.schema().is_mutable() || depends_on_data || is_absolute) return false;
  const std::vector<size_t> read = read_by(step);
  const auto base_of = [&](const at::Tensor& result) {
    const auto base = std::find_if(read.begin(), read.end(), [&](size_t index) {
      return result.defined() && is_defined(recorded_[index]) && recorded_[index].toTensor().is_alias_of(result);
    });
    return base == read.end() ? recorded_.size() : roots_[*base];
  };
  for (size_t value = first; value < end; ++value) {
    const bool is_list = recorded_[value].isTensorList();
    if (!is_list && !recorded_[value].isTensor()) return false;
    if (is_list && recorded_[value].toTensorVector().empty()) return false;
    const size_t base = base_of(is_list ? recorded_[value].toTensorVector()[0] : recorded_[value].toTensor());
    if (base < recorded_.size()) {
      roots_[value] = base;
    } else if (is_list) {
      return false;
    }
  }
  return true;
}

// Assigns memory to states and values: results are computed in place, in their rows, where possible; others are copied
// there.
bool LoopStages::give_homes(int64_t begin, const Values& results) {
  places_.resize(recorded_.size());
  const int64_t sign = loop_.reverse ? -1 : 1, first = loop_.reverse ? run_.steps - 1 - begin : begin;
  const size_t count = loop_.trails.size();
  states_.resize(count);
  for (size_t k = 0; k < results.size(); ++k) {
    const auto value = static_cast<size_t>(loop_.body->outputs[k]);
    if (loop_.body->outputs[k] < 0 || !is_defined(recorded_[value])) return false;
    const bool is_state = k < count;
    if (is_state && !loop_.trails[k]) continue;
    const at::Tensor& rows = run_.rows[k];
    const Place place{row_of(rows, is_state && !loop_.reverse ? first + 1 : first), sign * rows.stride(0)};
    if (!give_home(value, place)) copies_.emplace_back(value, place);
    if (is_state) states_[k] = before(place);
  }
  for (size_t k = 0; k < count; ++k) {
    if (loop_.trails[k]) continue;
    const auto value = static_cast<size_t>(loop_.body->outputs[k]);
    if (!is_given(roots_[value]) && roots_[value] == value && places_[value].tensor.defined()) {
      states_[k] = before(places_[value]);  // shared with a result, or with another state
      continue;
    }
    const at::Tensor& initial = results[k].toTensor();
    std::vector<int64_t> sizes{2};
    sizes.insert(sizes.end(), initial.sizes().begin(), initial.sizes().end());
    const at::Tensor rows = at::empty(sizes, initial.options());
    const Place place{row_of(rows, 1), -rows.stride(0), 2};
    states_[k] = before(place);
    states_[k].tensor.copy_(initial);
    if (!give_home(value, place)) copies_.emplace_back(value, place);
  }
  for (size_t value = 0; value < recorded_.size(); ++value) {
    if (!is_defined(recorded_[value]) || roots_[value] != value || places_[value].tensor.defined()) continue;
    const at::Tensor& recorded = recorded_[value].toTensor();
    const size_t series = value - loop_.feeds.size(), invariant = series - run_.sequences.size();
    if (value < loop_.feeds.size()) {
      places_[value] = states_[loop_.feeds[value]];
    } else if (series < run_.sequences.size()) {
      const at::Tensor& sequence = run_.sequences[series];
      places_[value] = {row_of(sequence, first), sign * sequence.stride(0)};
    } else if (invariant < run_.invariants.size()) {
      places_[value] = {recorded};
    } else if (const auto whole = wholes_.find(value); whole != wholes_.end()) {
      places_[value] = {row_of(whole->second, first), sign * whole->second.stride(0)};
    } else if (const auto found = of_input_.find(value); found != of_input_.end() && found->second.together > 1) {
      const int64_t together = found->second.together;
      std::vector<int64_t> sizes{together};
      sizes.insert(sizes.end(), recorded.sizes().begin(), recorded.sizes().end());
      const at::Tensor rows = at::empty(sizes, recorded.options());
      places_[value] = {row_of(rows, loop_.reverse ? together - 1 : 0), sign * rows.stride(0), together};
    } else {
      places_[value] = {at::empty_strided(recorded.sizes(), recorded.strides(), recorded.options())};
    }
    if (!lies_as(places_[value].tensor, recorded)) return false;
  }
  return true;
}

// False if a value can't be placed there: it is an input, a view, already placed, or has other strides.
bool LoopStages::give_home(size_t value, const Place& place) {
  const bool is_free = !is_given(value) && roots_[value] == value && !places_[value].tensor.defined();
  if (!is_free || !lies_as(place.tensor, recorded_[value].toTensor())) return false;
  places_[value] = place;
  return true;
}

bool LoopStages::find_place(size_t value, Place& found) const {
  const size_t root = roots_[value];
  const Place& place = places_[root];
  if (!place.tensor.defined() || !is_defined(recorded_[value])) return false;
  found = place;
  if (value == root) return true;
  const at::Tensor& own = recorded_[value].toTensor();
  if (own.scalar_type() != place.tensor.scalar_type()) return false;  // offsets count elements of another size
  const int64_t offset = own.storage_offset() - recorded_[root].toTensor().storage_offset();
  found.tensor = place.tensor.as_strided(own.sizes(), own.strides(), place.tensor.storage_offset() + offset);
  return true;
}

bool LoopStages::add_stages() {
  for (size_t k = 0; k < loop_.body->steps.size(); ++k) {
    const auto& call = loop_.body->steps[k].call;
    const size_t first = firsts_[k], end = k + 1 < firsts_.size() ? firsts_[k + 1] : recorded_.size();
    if (const auto* program = std::get_if<ProgramStep>(&call)) {
      if (!add(*program, first)) return false;
    } else if (const auto* operation = std::get_if<OperatorStep>(&call)) {
      if (!add(*operation, first, end)) return false;
    }
  }
  for (const auto& [value, to] : copies_) {
    Place from;
    if (!find_place(value, from) || from.tensor.is_complex()) return false;  // stages don't copy complex tensors
    add_stage(fourfold_stage_copy, {moving(from)}, {to});
  }
  return true;
}

bool LoopStages::add(const ProgramStep& step, size_t first) {
  std::vector<fourfold_moving_tensor> inputs;
  std::vector<Place> outputs;
  for (size_t k = 0; k < step.inputs.size(); ++k) {
    const size_t index = step.inputs[k];
    const int32_t number = fourfold_program_number(step.program.program, static_cast<int32_t>(k));
    Place place;
    if (number >= 0) {
      numbers_.push_back(bits_of(scalar_of(recorded_[index]), static_cast<at::ScalarType>(number)));
      inputs.push_back({{&numbers_.back(), number, 0, nullptr, nullptr, nullptr}, 0, 0});
    } else if (find_place(index, place)) {
      inputs.push_back(moving(place));
    } else {
      return false;
    }
  }
  for (int32_t k = 0; k < fourfold_program_outputs(step.program.program); ++k) {
    if (!places_[first + static_cast<size_t>(k)].tensor.defined()) return false;
    outputs.push_back(places_[first + static_cast<size_t>(k)]);
  }
  add_stage(fourfold_stage_program, std::move(inputs), outputs);
  stages_.back().program = step.program.program;
  return true;
}

bool LoopStages::add(const OperatorStep& step, size_t first, size_t end) {
  const bool is_view = std::all_of(roots_.begin() + static_cast<int64_t>(first), roots_.begin() + static_cast<int64_t>(end),
                                   [first](size_t root) { return root < first; });
  if (is_view || without_stage_.count(first) > 0 || add_product(step, first)) return true;
  if (added_.count(first) > 0) return false;
  const std::string& name = step.handle.operator_name().name;
  const std::vector<size_t> read = read_by(step);
  Place from;
  if (name == "aten::clone" && read.size() == 1 && find_place(read[0], from) && !from.tensor.is_complex()) {
    add_stage(fourfold_stage_copy, {moving(from)}, {places_[first]});
    return true;
  }
  const bool have_places = std::all_of(read.begin(), read.end(), [&](size_t index) {
    const c10::IValue& value = recorded_[index];
    return is_defined(value) ? find_place(index, from) : !value.isTensorList();
  });
  if (!have_places) return false;
  calls_.push_back({&step, first, read, this});
  add_stage(fourfold_stage_function, {}, {});
  stages_.back().function = call;
  stages_.back().context = &calls_.back();
  return true;
}

void LoopStages::add_stage(int32_t kind, std::vector<fourfold_moving_tensor> inputs, const std::vector<Place>& outputs) {
  fourfold_stage made{};
  made.kind = kind;
  made.together = 1;
  made.inputs = static_cast<int32_t>(inputs.size());
  made.outputs = static_cast<int32_t>(outputs.size());
  tensors_.push_back(std::move(inputs));
  for (const Place& place : outputs) tensors_.back().push_back(moving(place));
  made.tensors = tensors_.back().data();
  stages_.push_back(made);
}

fourfold_moving_tensor LoopStages::moving(Place place) {
  held_.push_back(std::move(place.tensor));  // the description points to its sizes
  return {described(held_.back()), place.stride, place.period};
}

void LoopStages::call(void* context, int64_t step) {
  const Call& made = *static_cast<const Call*>(context);
  const LoopStages& stages = *made.stages;
  Values values = stages.recorded_;
  values.resize(made.first);
  const auto now = [step](const Place& place) {
    return place.stride == 0 ? place.tensor
                             : shifted(place, (place.period != 0 ? step % place.period : step) * place.stride).tensor;
  };
  for (const size_t index : made.inputs) {
    Place place;
    if (stages.find_place(index, place)) values[index] = now(place);
  }
  made.step->run(values);
  for (size_t k = made.first; k < values.size(); ++k) {
    if (stages.roots_[k] == k && is_defined(values[k])) now(stages.places_[k]).copy_(values[k].toTensor());
  }
}

}  // namespace fourfold::graph
