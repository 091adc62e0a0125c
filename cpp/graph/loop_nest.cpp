#include "loop_nest.h"

#include <ATen/ops/empty.h>
#include <ATen/record_function.h>

#include <algorithm>

#include "graph.h"
#include "loop_results.h"
#include "outputs.h"
#include "program.h"

namespace fourfold::graph {
namespace {

bool is_view(const OperatorStep& step) {
  const auto& results = step.handle.schema().returns();
  return !step.handle.schema().is_mutable() &&
         std::any_of(results.begin(), results.end(), [](const c10::Argument& result) { return result.alias_info() != nullptr; });
}

// The names of the body's steps that aren't programs, with how often each occurs: "mm, 2 addmm".
std::string outside_programs(const CompiledGraph& body, bool with_views) {
  std::vector<std::pair<std::string, int>> names;
  const auto add = [&names](const std::string& name) {
    const auto known = std::find_if(names.begin(), names.end(), [&](const auto& one) { return one.first == name; });
    known == names.end() ? static_cast<void>(names.emplace_back(name, 1)) : static_cast<void>(++known->second);
  };
  for (const GraphStep& step : body.steps) {
    if (const auto* operation = std::get_if<OperatorStep>(&step.call)) {
      if (with_views || !is_view(*operation)) add(name_of(*operation));
    } else if (std::holds_alternative<ConstantStep>(step.call)) {
      add("constant");
    } else if (std::holds_alternative<NumberStep>(step.call)) {
      add("number");
    } else if (std::holds_alternative<ConcatenationStep>(step.call)) {
      add("concatenation");
    } else if (std::holds_alternative<LoopStep>(step.call)) {
      add("loop");
    } else if (std::holds_alternative<CallStep>(step.call)) {
      add("graph");
    }
  }
  std::string text;
  for (const auto& [name, count] : names) {
    text += (text.empty() ? "" : ", ") + (count == 1 ? name : std::to_string(count) + " " + name);
  }
  return text;
}

// A frequent cause of several programs.
bool has_numbers_beside_larger(const Values& results, size_t states) {
  const auto is_number = [](const c10::IValue& value) { return value.isTensor() && value.toTensor().dim() == 0; };
  const auto count = std::count_if(results.begin(), results.begin() + static_cast<int64_t>(states), is_number);
  return count > 0 && count < static_cast<int64_t>(states);
}

}  // namespace

LoopNest::LoopNest(const LoopStep& loop, const LoopCall& call, int64_t begin)
    : loop_(loop), call_(call), steps_(call.steps - begin), first_(loop.reverse ? call.steps - 1 - begin : begin),
      sign_(loop.reverse ? -1 : 1), read_(loop.feeds.size() + call.series.size() + call.invariants.size()),
      output_of_(loop.trails.size(), -1) {}

Obstacle LoopNest::prepare(const Values& results) {
  Obstacle obstacle = find_program(results);
  if (obstacle.empty()) obstacle = add_outputs(results);
  return obstacle.empty() ? add_inputs(results) : obstacle;
}

Obstacle LoopNest::find_program(const Values& results) {
  const auto& steps = loop_.body->steps;
  program_ = steps.size() == 1 ? std::get_if<ProgramStep>(&steps[0].call) : nullptr;
  if (program_ == nullptr) {
    std::string outside = outside_programs(*loop_.body, /*with_views=*/false);
    if (outside.empty()) outside = outside_programs(*loop_.body, /*with_views=*/true);
    if (!outside.empty()) return "operators outside programs: " + outside;
    if (steps.empty()) return "there is nothing to compute";
    const std::string cause = has_numbers_beside_larger(results, loop_.trails.size())
                                  ? "; a state of one number beside larger ones needs their shape" : "";
    return "its step is " + std::to_string(steps.size()) + " programs" + cause;
  }
  if (!program_->updates.empty()) return "its program writes into a given tensor";
  if (program_->program.program == nullptr) return "its program can't run here";
  outputs_.resize(static_cast<size_t>(fourfold_program_outputs(program_->program.program)));
  output_strides_.resize(outputs_.size());
  held_.reserve(read_ + outputs_.size());
  numbers_.reserve(program_->inputs.size());
  return {};
}

Obstacle LoopNest::add_outputs(const Values& results) {
  std::vector<int64_t> result_of(outputs_.size(), -1);  // by output
  last_ = results;
  for (const bool are_series : {true, false}) {
    for (size_t k = 0; k < results.size(); ++k) {
      if (is_series(k) != are_series) continue;
      if (loop_.body->outputs[k] < static_cast<int64_t>(read_)) {  // an input of the body
        const auto input = static_cast<size_t>(loop_.body->outputs[k]);
        if (are_series || input >= loop_.feeds.size() || loop_.feeds[input] != k) return "a result is an input of the step";
        continue;  // an unchanged state
      }
      const auto output = static_cast<size_t>(loop_.body->outputs[k]) - read_;
      if (k < loop_.trails.size()) output_of_[k] = static_cast<int32_t>(output);
      if (result_of[output] >= 0) {
        if (are_series) return "a value is returned twice";
        last_of_.emplace_back(k, result_of[output]);
        continue;
      }
      result_of[output] = static_cast<int64_t>(k);
      if (are_series) {
        held_.push_back(element(call_.rows[k], k < loop_.trails.size() && !loop_.reverse ? first_ + 1 : first_));
      } else {
        held_.push_back(at::empty(results[k].toTensor().sizes(), results[k].toTensor().options()));
        last_[k] = held_.back();
      }
      outputs_[output] = described(held_.back());
      output_strides_[output] = are_series ? sign_ * call_.rows[k].stride(0) : 0;
    }
  }
  return {};
}

Obstacle LoopNest::add_input(const at::Tensor& tensor, int64_t stride, int32_t feed) {
  if (tensor.is_neg() || tensor._is_zerotensor()) return "a tensor is negated lazily, or has no memory";
  held_.push_back(tensor);
  inputs_.push_back(described(held_.back()));
  input_strides_.push_back(stride);
  input_feeds_.push_back(feed);
  return {};
}

Obstacle LoopNest::add_inputs(const Values& results) {
  const size_t states = loop_.feeds.size(), series = call_.series.size();
  for (const size_t index : program_->inputs) {
    const bool is_state = index < states, is_element = !is_state && index < states + series;
    const int32_t number = fourfold_program_number(program_->program.program, static_cast<int32_t>(inputs_.size()));
    if (number >= 0) {
      if (is_state || is_element) return "its step reads a number that differs from step to step";
      numbers_.push_back(bits_of(scalar_of(call_.invariants[index - states - series]), static_cast<at::ScalarType>(number)));
      inputs_.push_back({&numbers_.back(), number, 0, nullptr, nullptr, nullptr});
      input_strides_.push_back(0);
      input_feeds_.push_back(-1);
      continue;
    }
    Obstacle obstacle;
    if (is_state) {  // contiguous, like the rows and the last states
      const size_t state = loop_.feeds[index];
      obstacle = add_input(results[state].toTensor().contiguous(), 0, output_of_[state]);
    } else if (is_element) {
      const at::Tensor& of = call_.series[index - states];
      obstacle = add_input(element(of, first_), sign_ * of.stride(0), -1);
    } else {
      obstacle = add_input(call_.invariants[index - states - series].toTensor(), 0, -1);
    }
    if (!obstacle.empty()) return obstacle;
  }
  return {};
}

Obstacle LoopNest::find_layout(std::string& layout) const {
  const fourfold_steps steps = this->steps();
  const int32_t failed = fourfold_program_layout_of_steps(
      program_->program.program, inputs_.data(), static_cast<int32_t>(inputs_.size()), outputs_.data(), &steps, &layout,
      [](void* context, const char* text) { *static_cast<std::string*>(context) = text; });
  TORCH_CHECK_VALUE(failed != 1, fourfold_program_error());
  return failed == 0 ? "" : fourfold_program_error();
}

Obstacle LoopNest::run(Values& results) {
  RECORD_FUNCTION("fourfold_loop_as_nest", std::vector<c10::IValue>());
  const fourfold_steps steps = this->steps();
  const int32_t failed = fourfold_program_run_steps(
      program_->program.program, inputs_.data(), static_cast<int32_t>(inputs_.size()), outputs_.data(), &steps);
  TORCH_CHECK_VALUE(failed != 1, fourfold_program_error());
  if (failed != 0) return fourfold_program_error();
  results = std::move(last_);
  for (const auto& [state, result] : last_of_) {
    const at::Tensor& rows = call_.rows[result];
    const at::Tensor value =
        is_series(result) ? element(rows, loop_.reverse ? 0 : rows.size(0) - 1) : results[result].toTensor();
    results[state] = value.clone();
  }
  return {};
}

}  // namespace fourfold::graph
