#include "loop_step.h"

#include <ATen/core/LegacyTypeDispatch.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "graph.h"
#include "loop_nest.h"
#include "loop_results.h"
#include "loop_stages.h"

namespace fourfold::graph {
namespace {

constexpr int64_t fewest_of_stages = 4;  // steps for which packing the matrices pays

bool is_plain(const c10::IValue& value) { return !value.isTensor() || is_plain_tensor(value.toTensor()); }

// The steps read series by strides, without further checks by programs or torch.
void expect_series(const LoopCall& call) {
  TORCH_CHECK_VALUE(call.steps > 0, "loop: expected at least one step, but got ", std::to_string(call.steps));
  for (const at::Tensor& series : call.series) {
    TORCH_CHECK_VALUE(series.defined() && series.dim() > 0 && series.size(0) == call.steps, "loop: expected series of ",
                      std::to_string(call.steps), " steps, but got one of shape ", text_of(series.sizes()));
  }
}

void expect_same_state(size_t k, const at::Tensor& old, const at::Tensor& now) {
  TORCH_CHECK_VALUE(now.defined() && now.sizes() == old.sizes() && now.scalar_type() == old.scalar_type(),
                    "loop: expected the step to return state ", std::to_string(k), " of shape ", text_of(old.sizes()), " and ",
                    old.scalar_type(), " as it takes it, but got shape ", text_of(now.sizes()), " and ", now.scalar_type());
}

Values inputs_of_step(const LoopCall& call, Values states, int64_t step, bool is_plain) {
  states.reserve(states.size() + call.series.size() + call.invariants.size());
  for (const at::Tensor& series : call.series) {
    states.emplace_back(is_plain ? element(series, step) : series.select(0, step));
  }
  states.insert(states.end(), call.invariants.begin(), call.invariants.end());
  return states;
}

}  // namespace

LoopCall LoopStep::call_of(const Values& given) const {
  const auto states = given.begin() + 1, first = states + static_cast<int64_t>(feeds.size());
  const auto last = first + static_cast<int64_t>(series);
  LoopCall call{given[0].toInt(), Values(states, first), {}, Values(last, given.end()), {}};
  for (auto each = first; each != last; ++each) call.series.push_back(each->toTensor());
  expect_series(call);
  return call;
}

// The steps run one by one until a faster way takes the rest: one loop nest, else stages. Both need results of the first
// step, whose layouts are those of all steps.
void LoopStep::run(Values& values) const {
  Values given;
  for (const size_t index : inputs) given.push_back(values[index]);
  const bool are_plain = std::all_of(given.begin(), given.end(), is_plain);
  std::optional<at::AutoDispatchBelowADInplaceOrView> no_autograd;
  if (are_plain) no_autograd.emplace();
  LoopCall call = call_of(given);
  LoopResults kept(*this, call, are_plain);
  const Obstacle no_stages = are_plain ? obstacle_to_stages(call) : "it has tensor subclasses or transforms";
  Values states = call.states, results, recorded;
  std::vector<size_t> firsts;
  if (no_stages.empty()) {  // contiguous, like the rows in which states are kept
    for (c10::IValue& state : states) state = state.toTensor().contiguous();
  }
  for (int64_t n = 0; n < call.steps; ++n) {
    const int64_t step = reverse ? call.steps - 1 - n : n;
    Values read = inputs_of_step(call, std::move(states), step, are_plain);
    if (n == 0 && no_stages.empty()) {
      recorded = body->record(std::move(read), firsts);
      results = body->results_of(recorded);
    } else {
      results = body->run(std::move(read), /*records=*/!are_plain);
    }
    for (size_t k = 0; k < feeds.size(); ++k) {
      expect_same_state(k, call.states[k].toTensor(), results[feeds[k]].toTensor());
    }
    kept.add(results, step);
    if (n == 0 && are_plain && run_at_once(call, no_stages, std::move(recorded), firsts, results)) break;
    states.clear();
    for (const size_t feed : feeds) states.push_back(results[feed]);
  }
  kept.append(results, values);
}

bool LoopStep::run_at_once(const LoopCall& call, const Obstacle& no_stages, Values recorded,
                           const std::vector<size_t>& firsts, Values& results) const {
  if (call.steps < 2 || !obstacle_to_plan().empty()) return false;
  LoopNest nest(*this, call, 1);
  if (nest.prepare(results).empty() && nest.run(results).empty()) return true;
  if (!no_stages.empty()) return false;
  LoopStages stages(*this, call, std::move(recorded), firsts);
  return stages.prepare(1, results).empty() && stages.run(results).empty();
}

Obstacle LoopStep::obstacle_to_stages(const LoopCall& call) const {
  for (const Values* values : {&call.states, &call.invariants}) {
    for (const c10::IValue& value : *values) {
      if (value.isTensor() && !value.toTensor().is_cpu()) return "on " + value.toTensor().device().str() + " the steps run one by one";
    }
  }
  for (const at::Tensor& each : call.series) {
    if (!each.is_cpu()) return "on " + each.device().str() + " the steps run one by one";
  }
  if (call.steps < fewest_of_stages) return "there are fewer than " + std::to_string(fewest_of_stages) + " steps";
  return obstacle_to_plan();
}

Obstacle LoopStep::obstacle_to_plan() const {
  if (!body->has_plan()) return "its graph needs Python";
  if (body->layouts.empty()) return {};
  return "PyTorch's operators need the gradient of a state in the memory layout that was traced";
}

LoopPlan LoopStep::plan(const Values& given, Values recorded, const std::vector<size_t>& firsts) const {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  LoopCall call = call_of(given);
  LoopPlan plan;
  plan.stages = obstacle_to_stages(call);
  plan.nest = call.steps < 2 ? "the first step runs separately, and there is no other" : obstacle_to_plan();
  if (!body->has_plan()) return plan;
  Values results = body->results_of(recorded);
  if (!std::all_of(results.begin(), results.end(), [](const c10::IValue& result) { return result.isTensor(); })) {
    plan.nest = plan.stages = "a result's size depends on data";
    return plan;
  }
  LoopResults(*this, call, true).add(results, 0);
  if (plan.nest.empty()) {
    LoopNest nest(*this, call, 1);
    plan.nest = nest.prepare(results);
    if (plan.nest.empty()) plan.nest = nest.find_layout(plan.layout);
  }
  if (plan.stages.empty()) {
    LoopStages stages(*this, call, std::move(recorded), firsts);
    plan.stages = stages.prepare(1, results);
    if (plan.stages.empty()) plan.stages = stages.check();
    if (plan.stages.empty()) plan.stage_texts = stages.texts();
  }
  return plan;
}

}  // namespace fourfold::graph
