#include "loop_step.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/record_function.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <c10/util/strides.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "graph.h"
#include "loop_stages.h"
#include "memory.h"
#include "outputs.h"
#include "values.h"

namespace fourfold::graph {
namespace {

constexpr int64_t fewest_of_stages = 4;  // steps for which packing the matrices pays

bool is_plain(const c10::IValue& value) {
  if (!value.isTensor()) return true;
  const at::Tensor& tensor = value.toTensor();
  return tensor.layout() == at::kStrided && !is_wrapped(tensor) &&
         !tensor.unsafeGetTensorImpl()->is_python_dispatch();
}

// One step's element of a series, whose first dimension is the steps.
at::Tensor element(const at::Tensor& series, int64_t step) {
  return series.as_strided(
      series.sizes().slice(1), series.strides().slice(1), series.storage_offset() + step * series.stride(0));
}

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

// The steps read series by strides, without further checks by programs or torch.
void expect_series(int64_t steps, const std::vector<at::Tensor>& sequences) {
  TORCH_CHECK_VALUE(steps > 0, "loop: expected at least one step, but got ", std::to_string(steps));
  for (const at::Tensor& sequence : sequences) {
    TORCH_CHECK_VALUE(sequence.defined() && sequence.dim() > 0 && sequence.size(0) == steps,
                      "loop: expected series of ", std::to_string(steps), " steps, but got one of shape ",
                      text_of(sequence.sizes()));
  }
}

void expect_same_state(size_t k, const at::Tensor& old, const at::Tensor& now) {
  TORCH_CHECK_VALUE(now.defined() && now.sizes() == old.sizes() && now.scalar_type() == old.scalar_type(),
                    "loop: expected the step to return state ", std::to_string(k), " of shape ", text_of(old.sizes()), " and ",
                    old.scalar_type(), " as it takes it, but got shape ", text_of(now.sizes()), " and ", now.scalar_type());
}

// Appends the rows of results that are kept for all steps, and the last values of the others. Those are copied if they
// share memory with an input or an earlier result.
void append_results(
    const std::vector<size_t>& inputs, std::vector<at::Tensor>& rows, const Values& results, Values& values) {
  const size_t first = values.size();
  for (size_t k = 0; k < rows.size(); ++k) {
    if (rows[k].defined()) {
      values.emplace_back(std::move(rows[k]));
      continue;
    }
    const at::Tensor& last = results[k].toTensor();
    const auto is_shared = [&last](const c10::IValue& value) { return shares_memory(last, value); };
    const bool is_input =
        std::any_of(inputs.begin(), inputs.end(), [&](size_t index) { return is_shared(values[index]); });
    const bool is_twice = std::any_of(values.begin() + static_cast<int64_t>(first), values.end(), is_shared);
    values.emplace_back(is_input || is_twice ? last.clone() : last);
  }
}

// The steps of a program from `begin` on, in one loop nest.
class LoopNest {
 public:
  LoopNest(const LoopStep& loop, const ProgramStep& program, const LoopRun& running, int64_t begin)
      : loop_(loop), program_(program), running_(running), steps_(running.steps - begin),
        first_(loop.reverse ? running.steps - 1 - begin : begin), sign_(loop.reverse ? -1 : 1),
        read_(loop.feeds.size() + running.sequences.size() + running.invariants.size()),
        outputs_(static_cast<size_t>(fourfold_program_outputs(program.program.program))),
        output_strides_(outputs_.size()), output_of_(loop.trails.size(), -1) {
    held_.reserve(read_ + outputs_.size());
    numbers_.reserve(program.inputs.size());
  }

  // Chooses the tensors that the steps write and read. results: those of the step before. False if no nest can run the
  // steps.
  bool add_outputs(const Values& results);
  bool add_inputs(const Values& results);

  // False if there is no nest. `results` become those of the last step.
  bool run(Values& results);

 private:
  bool is_series(size_t result) const { return result >= loop_.trails.size() || loop_.trails[result]; }
  bool add_input(const at::Tensor& tensor, int64_t stride, int32_t feed);

  const LoopStep& loop_;
  const ProgramStep& program_;
  const LoopRun& running_;
  const int64_t steps_;
  const int64_t first_;
  const int64_t sign_;
  const size_t read_;             // the number of values that the body reads
  std::vector<at::Tensor> held_;  // the descriptions point to their sizes
  std::vector<int64_t> numbers_;  // the scalars' bits, to which descriptions point
  std::vector<fourfold_tensor> inputs_;
  std::vector<int64_t> input_strides_;
  std::vector<int32_t> input_feeds_;
  std::vector<fourfold_tensor> outputs_;
  std::vector<int64_t> output_strides_;
  std::vector<int32_t> output_of_;                  // by state
  std::vector<std::pair<size_t, size_t>> last_of_;  // (state, the result whose last element it is)
  Values last_;
};

bool LoopNest::add_outputs(const Values& results) {
  std::vector<int64_t> result_of(outputs_.size(), -1);  // by output
  last_ = results;
  for (const bool are_series : {true, false}) {
    for (size_t k = 0; k < results.size(); ++k) {
      if (is_series(k) != are_series) continue;
      if (loop_.body->outputs[k] < static_cast<int64_t>(read_)) {  // an input of the body
        const auto input = static_cast<size_t>(loop_.body->outputs[k]);
        if (are_series || input >= loop_.feeds.size() || loop_.feeds[input] != k) return false;
        continue;  // an unchanged state
      }
      const auto output = static_cast<size_t>(loop_.body->outputs[k]) - read_;
      if (k < loop_.trails.size()) output_of_[k] = static_cast<int32_t>(output);
      if (result_of[output] >= 0) {
        if (are_series) return false;  // two series of one output
        last_of_.emplace_back(k, result_of[output]);
        continue;
      }
      result_of[output] = static_cast<int64_t>(k);
      if (are_series) {
        held_.push_back(element(running_.rows[k], k < loop_.trails.size() && !loop_.reverse ? first_ + 1 : first_));
      } else {
        held_.push_back(at::empty(results[k].toTensor().sizes(), results[k].toTensor().options()));
        last_[k] = held_.back();
      }
      outputs_[output] = described(held_.back());
      output_strides_[output] = are_series ? sign_ * running_.rows[k].stride(0) : 0;
    }
  }
  return true;
}

bool LoopNest::add_input(const at::Tensor& tensor, int64_t stride, int32_t feed) {
  if (tensor.is_neg() || tensor._is_zerotensor()) return false;
  held_.push_back(tensor);
  inputs_.push_back(described(held_.back()));
  input_strides_.push_back(stride);
  input_feeds_.push_back(feed);
  return true;
}

bool LoopNest::add_inputs(const Values& results) {
  const size_t states = loop_.feeds.size(), series = running_.sequences.size();
  for (const size_t index : program_.inputs) {
    const bool is_state = index < states, is_element = !is_state && index < states + series;
    const int32_t number = fourfold_program_number(program_.program.program, static_cast<int32_t>(inputs_.size()));
    if (number >= 0 && (is_state || is_element)) return false;  // it differs from step to step
    if (is_state) {  // contiguous, like the rows and the last states
      const size_t state = loop_.feeds[index];
      if (!add_input(results[state].toTensor().contiguous(), 0, output_of_[state])) return false;
      continue;
    }
    if (is_element) {
      const at::Tensor& sequence = running_.sequences[index - states];
      if (!add_input(element(sequence, first_), sign_ * sequence.stride(0), -1)) return false;
      continue;
    }
    const c10::IValue& value = running_.values[running_.invariants[index - states - series]];
    if (number < 0) {
      if (!add_input(value.toTensor(), 0, -1)) return false;
      continue;
    }
    numbers_.push_back(bits_of(scalar_of(value), static_cast<at::ScalarType>(number)));
    inputs_.push_back({&numbers_.back(), number, 0, nullptr, nullptr, nullptr});
    input_strides_.push_back(0);
    input_feeds_.push_back(-1);
  }
  return true;
}

bool LoopNest::run(Values& results) {
  const fourfold_steps steps{steps_, input_feeds_.data(), input_strides_.data(), output_strides_.data()};
  RECORD_FUNCTION("fourfold_loop_as_nest", std::vector<c10::IValue>());
  const int32_t failed = fourfold_program_run_steps(
      program_.program.program, inputs_.data(), static_cast<int32_t>(inputs_.size()), outputs_.data(), &steps);
  TORCH_CHECK_VALUE(failed != 1, fourfold_program_error());
  if (failed != 0) return false;
  results = std::move(last_);
  for (const auto& [state, result] : last_of_) {
    const at::Tensor& rows = running_.rows[result];
    const at::Tensor value =
        is_series(result) ? element(rows, loop_.reverse ? 0 : rows.size(0) - 1) : results[result].toTensor();
    results[state] = value.clone();
  }
  return true;
}

}  // namespace

void LoopStep::run(Values& values) const {
  if (!std::all_of(inputs.begin(), inputs.end(), [&values](size_t index) { return is_plain(values[index]); })) {
    Values given;
    for (const size_t index : inputs) given.push_back(values[index]);
    for (c10::IValue& result : by_operators ? by_operators(given) : run_by_operators(given)) values.push_back(std::move(result));
    return;
  }
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  const int64_t steps = values[inputs[0]].toInt();
  Values states;
  for (size_t k = 0; k < feeds.size(); ++k) states.push_back(values[inputs[1 + k]]);
  std::vector<at::Tensor> sequences;
  for (size_t k = 0; k < series; ++k) sequences.push_back(values[inputs[1 + feeds.size() + k]].toTensor());
  expect_series(steps, sequences);
  const std::vector<size_t> invariants(inputs.begin() + static_cast<int64_t>(1 + feeds.size() + series), inputs.end());
  std::vector<at::Tensor> rows(trails.size());
  for (size_t k = 0; k < feeds.size(); ++k) {
    if (!trails[feeds[k]]) continue;
    rows[feeds[k]] = rows_like(states[k].toTensor(), steps + 1);
    write(rows[feeds[k]], reverse ? steps : 0, states[k].toTensor());
  }
  const auto is_on_cpu = [&values](size_t index) { return !values[index].isTensor() || values[index].toTensor().is_cpu(); };
  const bool has_stages = steps >= fewest_of_stages && body->has_plan() && body->layouts.empty() &&
                          std::all_of(inputs.begin(), inputs.end(), is_on_cpu);
  Values results, recorded;
  std::vector<size_t> firsts;
  for (int64_t n = 0; n < steps; ++n) {
    const int64_t step = reverse ? steps - 1 - n : n;
    Values given;
    given.reserve(feeds.size() + series + invariants.size());
    for (c10::IValue& state : states) {  // contiguous, like the rows in which states are kept
      given.emplace_back(has_stages && n == 0 ? c10::IValue(state.toTensor().contiguous()) : std::move(state));
    }
    for (const at::Tensor& sequence : sequences) given.emplace_back(element(sequence, step));
    for (const size_t index : invariants) given.push_back(values[index]);
    if (has_stages && n == 0) {
      recorded = body->record(std::move(given), firsts);
      results = body->results_of(recorded);
    } else {
      results = body->run(std::move(given));
    }
    for (size_t k = 0; k < feeds.size(); ++k) {
      expect_same_state(k, values[inputs[1 + k]].toTensor(), results[feeds[k]].toTensor());
    }
    keep_results(results, steps, step, rows);
    // The results' shapes are known after the first step.
    if (n == 0 && steps > 1) {
      const LoopRun running{steps, sequences, values, invariants, rows};
      if (run_nest(running, 1, results)) break;
      if (has_stages && LoopStages(*this, running, std::move(recorded), firsts).run(1, results)) break;
    }
    for (size_t k = 0; k < feeds.size(); ++k) states[k] = results[feeds[k]];
  }
  append_results(inputs, rows, results, values);
}

void LoopStep::keep_results(const Values& results, int64_t steps, int64_t step, std::vector<at::Tensor>& rows) const {
  rows.resize(results.size());
  for (size_t k = 0; k < results.size(); ++k) {
    const bool is_state = k < trails.size();
    if (is_state && !trails[k]) continue;
    const at::Tensor& result = results[k].toTensor();
    if (!rows[k].defined()) rows[k] = rows_like(result, steps);
    write(rows[k], is_state && !reverse ? step + 1 : step, result);
  }
}

bool LoopStep::run_nest(const LoopRun& running, int64_t begin, Values& results) const {
  if (body->steps.size() != 1 || !body->layouts.empty()) return false;
  const auto* const program = std::get_if<ProgramStep>(&body->steps[0].call);
  if (program == nullptr || !program->updates.empty()) return false;
  LoopNest nest(*this, *program, running, begin);
  return nest.add_outputs(results) && nest.add_inputs(results) && nest.run(results);
}

Values LoopStep::run_by_operators(const Values& given) const {
  const int64_t steps = given[0].toInt();
  const auto states_at = given.begin() + 1, series_at = states_at + static_cast<int64_t>(feeds.size());
  const auto invariants_at = series_at + static_cast<int64_t>(series);
  std::vector<at::Tensor> sequences;
  for (auto sequence = series_at; sequence != invariants_at; ++sequence) sequences.push_back(sequence->toTensor());
  expect_series(steps, sequences);
  std::vector<std::vector<at::Tensor>> rows;  // [result][step]
  Values states(states_at, series_at);
  for (int64_t n = 0; n < steps; ++n) {
    const int64_t step = reverse ? steps - 1 - n : n;
    Values read = states;
    for (const at::Tensor& sequence : sequences) read.emplace_back(sequence.select(0, step));
    read.insert(read.end(), invariants_at, given.end());
    const Values results = body->run(std::move(read), /*records=*/true);
    rows.resize(results.size());
    for (size_t k = 0; k < results.size(); ++k) rows[k].push_back(results[k].toTensor());
    for (size_t k = 0; k < feeds.size(); ++k) {
      expect_same_state(k, states[k].toTensor(), results[feeds[k]].toTensor());
      states[k] = results[feeds[k]];
    }
  }
  Values results;
  for (size_t k = 0; k < rows.size(); ++k) {
    if (k < trails.size() && !trails[k]) {
      results.emplace_back(rows[k].back().clone());
      continue;
    }
    if (k < trails.size()) {
      const auto state = std::find(feeds.begin(), feeds.end(), k) - feeds.begin();
      rows[k].insert(rows[k].begin(), (states_at + state)->toTensor());
    }
    if (reverse) std::reverse(rows[k].begin(), rows[k].end());
    results.emplace_back(at::stack(rows[k]));
  }
  return results;
}

}  // namespace fourfold::graph
