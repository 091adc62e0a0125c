#include "steady.h"

#include <ATen/Functions.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/record_function.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "graph.h"
#include "steady_plan.h"

namespace fourfold::graph {
namespace {

constexpr int64_t most_of_relu = 1 << 12;  // elements, which take less than a call of torch's
constexpr size_t most_known = 4;   // layouts of inputs
constexpr int calls_to_plan = 3;   // with the same layouts in a row
constexpr size_t most_bytes_of_values = size_t{1} << 24;  // of all results, to be kept during the call that is planned

// No mode, profiler or transform of torch's sees operators.
bool is_plain_call() {
  if (c10::impl::dispatch_mode_enabled() || at::getStepCallbacksUnlessEmpty(at::RecordScope::FUNCTION).has_value()) return false;
  const auto included = c10::impl::tls_local_dispatch_key_set().included_ - c10::autocast_dispatch_keyset;
  return (included - c10::default_included_set).empty();
}

bool is_simple(const at::Tensor& tensor) {
  return is_plain_tensor(tensor) && tensor.is_cpu() && !tensor.is_conj() && !tensor.is_quantized() && !tensor.is_nested() &&
         !tensor.unsafeGetTensorImpl()->is_wrapped_number();
}

bool is_same_number(const c10::IValue& a, const c10::IValue& b) {
  if (a.isInt() && b.isInt()) return a.toInt() == b.toInt();
  if (a.isDouble() && b.isDouble()) return a.toDouble() == b.toDouble() && std::signbit(a.toDouble()) == std::signbit(b.toDouble());
  if (a.isBool() && b.isBool()) return a.toBool() == b.toBool();
  return a.isNone() && b.isNone();
}

}  // namespace

InputKey::InputKey(const Values& inputs, bool records) : records_(records), is_inference_(c10::InferenceMode::is_enabled()) {
  for (const c10::IValue& value : inputs) {
    Input input;
    if (value.isTensor() && value.toTensor().defined()) {
      const at::Tensor& tensor = value.toTensor();
      input.dtype = tensor.scalar_type();
      input.layout.append(tensor.sizes().begin(), tensor.sizes().end());
      input.layout.append(tensor.strides().begin(), tensor.strides().end());
    } else {
      input.other = value;
    }
    inputs_.push_back(std::move(input));
  }
}

// From the last input on, because models pass their weights first.
bool InputKey::fits(const Values& inputs, bool records) const {
  if (inputs.size() != inputs_.size() || records != records_ || c10::InferenceMode::is_enabled() != is_inference_) return false;
  for (size_t k = inputs.size(); k-- > 0;) {
    const Input& own = inputs_[k];
    if (!own.dtype.has_value()) {
      if (!is_same_number(own.other, inputs[k])) return false;
      continue;
    }
    if (!inputs[k].isTensor() || !inputs[k].toTensor().defined()) return false;
    const at::Tensor& tensor = inputs[k].toTensor();
    const auto dims = static_cast<size_t>(tensor.dim());
    if (own.layout.size() != 2 * dims || tensor.scalar_type() != *own.dtype || !is_simple(tensor)) return false;
    if (!std::equal(tensor.sizes().begin(), tensor.sizes().end(), own.layout.begin())) return false;
    if (!std::equal(tensor.strides().begin(), tensor.strides().end(), own.layout.begin() + static_cast<int64_t>(dims))) return false;
  }
  return true;
}

// One call at a time: memory, and what steps prepare for it.
class SteadyCall {
 public:
  explicit SteadyCall(const SteadyPlan& plan) : plan_(plan), values_(plan.is_of_call.size()), block_(c10::GetCPUAllocator()->allocate(plan.bytes)) {
    const at::AutoDispatchBelowADInplaceOrView no_autograd;
    for (const auto& [value, constant] : plan.constants) values_[value] = constant;
    std::map<size_t, size_t> places(plan.places.begin(), plan.places.end());
    for (const Kept& kept : plan.kept) {
      const TensorLayout& layout = kept.layout;
      if (kept.value == kept.owner) {
        void* const data = static_cast<char*>(block_.get()) + places.at(kept.value);
        values_[kept.value] = at::from_blob(data, layout.sizes, layout.strides, at::TensorOptions().dtype(layout.dtype));
      } else {
        values_[kept.value] = values_[kept.owner].toTensor().as_strided(layout.sizes, layout.strides, layout.offset);
      }
    }
    programs_.resize(plan.actions.size());
    convolutions_.resize(plan.actions.size());
  }

  // False after a call in which something else happened than in the one that was planned.
  bool is_steady() const { return is_steady_; }

  Values run(const CompiledGraph& graph, const Values& inputs, bool records) {
    std::copy(inputs.begin(), inputs.end(), values_.begin());
    for (size_t k = 0; k < plan_.actions.size(); ++k) {
      const Action& action = plan_.actions[k];
      for (const auto& [value, layout] : action.made) values_[value] = new_memory(layout.sizes, layout.strides, layout.dtype, at::kCPU);
      if (!act(k, action, graph, records)) return go_on(action.way == Way::as_ever ? action.step + 1 : action.step, graph, records);
      for (const size_t value : action.last) values_[value] = {};
    }
    Values results = graph.results_of(values_);
    for (size_t value = 0; value < inputs.size(); ++value) values_[value] = {};
    for (const Action& action : plan_.actions) {
      for (const size_t value : action.results) {
        if (plan_.is_of_call[value]) values_[value] = {};
      }
    }
    return results;
  }

 private:
  struct Program {
    std::vector<fourfold_tensor> inputs, targets;
    std::vector<int64_t> numbers;
  };

  // False if the step has to run, or to run again, as ever.
  bool act(size_t k, const Action& action, const CompiledGraph& graph, bool records) {
    const auto& call = graph.steps[action.step].call;
    if (action.way == Way::as_ever) return as_ever(action, graph, records);
    if (action.way == Way::program) return run_program(action, std::get<ProgramStep>(call), programs_[k]);
    const at::AutoDispatchBelowADInplaceOrView no_autograd;
    const auto& step = std::get<OperatorStep>(call);
    stack_.clear();
    for (const OperatorArgument& argument : step.arguments) stack_.push_back(argument.value(values_));
    if (step.guard != nullptr) step.guard(step.handle.schema(), stack_);
    const at::Tensor& result = values_[action.results[0]].toTensor();
    if (action.way == Way::substitute) return step.substitute(stack_, step.own.get(), &result);
    if (action.way == Way::convolution) return convolve(k, step, result);
    if (action.way == Way::relu) return relu(stack_[0].toTensor(), result);
    stack_.emplace_back(result);
    action.operation->callBoxed(stack_);
    return true;
  }

  bool as_ever(const Action& action, const CompiledGraph& graph, bool records) {
    const size_t end = values_.size();
    graph.run_step(graph.steps[action.step], values_, records);
    bool is_expected = true;
    for (size_t k = 0; k < action.results.size(); ++k) values_[action.results[k]] = std::move(values_[end + k]);
    values_.resize(end);
    for (const auto& [value, layout] : action.expected) {
      is_expected = is_expected && values_[value].isTensor() && lies_as(values_[value].toTensor(), layout);
    }
    return is_expected;
  }

  struct Outputs {
    SteadyCall& call;
    const Action& action;
  };

  static void* memory_of_output(
      void* context, int32_t output, int32_t dtype, int32_t dim, const int64_t* sizes, const int64_t* strides) {
    const auto& [call, action] = *static_cast<Outputs*>(context);
    const at::Tensor& there = call.values_[action.results[static_cast<size_t>(output)]].toTensor();
    const auto dims = static_cast<size_t>(dim);
    const bool fits = static_cast<int32_t>(there.scalar_type()) == dtype && there.sizes() == at::IntArrayRef(sizes, dims) &&
                      there.strides() == at::IntArrayRef(strides, dims);
    return fits ? there.mutable_data_ptr() : nullptr;
  }

  bool run_program(const Action& action, const ProgramStep& step, Program& made) {
    const fourfold_program* const program = step.program.program;
    made.inputs.clear();
    made.numbers.resize(step.inputs.size());
    for (size_t k = 0; k < step.inputs.size(); ++k) {
      const c10::IValue& value = values_[step.inputs[k]];
      const int32_t number = fourfold_program_number(program, static_cast<int32_t>(k));
      if (number < 0) {
        made.inputs.push_back(described(value.toTensor()));
      } else {
        made.numbers[k] = bits_of(scalar_of(value), static_cast<at::ScalarType>(number));
        made.inputs.push_back({&made.numbers[k], number, 0, nullptr, nullptr, nullptr});
      }
    }
    for (const Update& update : step.updates) {
      made.targets.resize(action.results.size());
      const at::Tensor& part = values_[update.value].toTensor();
      made.targets[update.output] = described(part);
      values_[action.results[update.output]] = part;
    }
    Outputs outputs{*this, action};
    const auto count = static_cast<int32_t>(made.inputs.size());
    const fourfold_tensor* const targets = step.updates.empty() ? nullptr : made.targets.data();
    return fourfold_program_run(program, made.inputs.data(), count, targets, memory_of_output, &outputs) == 0;
  }

  bool convolve(size_t k, const OperatorStep& step, const at::Tensor& result) {
    if (convolutions_[k] == nullptr) convolutions_[k] = FewPositions::of(stack_, step.own.get());
    if (convolutions_[k] == nullptr) return false;
    convolutions_[k]->run(stack_[0].toTensor(), stack_[1].toTensor(), stack_[2].isTensor() ? stack_[2].toTensor() : at::Tensor(), result);
    return true;
  }

  static bool relu(const at::Tensor& x, const at::Tensor& result) {
    at::Tensor memory = result;
    if (x.numel() > most_of_relu) return at::clamp_min_out(memory, x, 0), true;
    const auto* const from = x.const_data_ptr<float>();
    auto* const to = result.mutable_data_ptr<float>();
    for (int64_t k = 0; k < x.numel(); ++k) to[k] = from[k] < 0 ? 0.0F : from[k];
    return true;
  }

  // Runs the steps from this one on as in any call, after which this one can't be used again.
  Values go_on(size_t step, const CompiledGraph& graph, bool records) {
    is_steady_ = false;
    if (step < graph.steps.size()) values_.resize(plan_.firsts[step]);
    for (; step < graph.steps.size(); ++step) {
      graph.run_step(graph.steps[step], values_, records);
      for (const size_t index : graph.steps[step].last) values_[index] = {};
    }
    Values results = graph.results_of(values_);
    const auto* const begin = static_cast<const char*>(block_.get());
    for (c10::IValue& result : results) {
      if (!result.isTensor() || !result.toTensor().defined()) continue;
      const auto* const data = static_cast<const char*>(result.toTensor().const_data_ptr());
      if (data >= begin && data < begin + plan_.bytes) result = result.toTensor().clone();
    }
    return results;
  }

  const SteadyPlan& plan_;
  bool is_steady_ = true;
  Values values_;
  at::DataPtr block_;
  torch::jit::Stack stack_;
  std::vector<Program> programs_;                             // by action
  std::vector<std::unique_ptr<FewPositions>> convolutions_;  // by action
};

// Inputs that have been seen.
struct SteadyCalls::Known {
  InputKey key;
  std::unique_ptr<const SteadyPlan> plan;         // null if there is nothing to gain
  std::vector<std::unique_ptr<SteadyCall>> idle;  // one for each of the calls that ran at once
};

SteadyCalls::SteadyCalls() = default;
SteadyCalls::~SteadyCalls() = default;

std::shared_ptr<SteadyCalls::Known> SteadyCalls::find(const Values& inputs, bool records) {
  const auto found = std::find_if(known_.rbegin(), known_.rend(), [&](const auto& each) { return each->key.fits(inputs, records); });
  return found == known_.rend() ? nullptr : *found;
}

// Whether these inputs have come often enough.
bool SteadyCalls::is_next(const Values& inputs, bool records) {
  if (calls_ > 0 && candidate_.fits(inputs, records)) {
    if (++calls_ < calls_to_plan) return false;
    calls_ = 0;
    return true;
  }
  candidate_ = InputKey(inputs, records);
  calls_ = 1;
  return false;
}

std::optional<Values> SteadyCalls::run(const CompiledGraph& graph, const Values& inputs, bool records) {
  if (!is_plain_call()) return std::nullopt;
  std::unique_ptr<SteadyCall> call;
  std::shared_ptr<Known> known;
  {
    const std::scoped_lock lock(mutex_);
    known = find(inputs, records);
    if (known == nullptr && !is_next(inputs, records)) return std::nullopt;
    if (known != nullptr && known->plan == nullptr) return std::nullopt;
    if (known != nullptr && known->plan->reads_constants && !*graph.are_unchanged) {
      known_.erase(std::remove(known_.begin(), known_.end(), known), known_.end());
      return std::nullopt;
    }
    if (known != nullptr && !known->idle.empty()) {
      call = std::move(known->idle.back());
      known->idle.pop_back();
    }
  }
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  if (known == nullptr) return plan(graph, inputs, records);
  if (call == nullptr) call = std::make_unique<SteadyCall>(*known->plan);
  Values results = call->run(graph, inputs, records);
  const std::scoped_lock lock(mutex_);
  if (call->is_steady()) {
    known->idle.push_back(std::move(call));
  } else {
    known_.erase(std::remove(known_.begin(), known_.end(), known), known_.end());
  }
  return results;
}

// A call whose values are all kept, from which its plan is made.
Values SteadyCalls::plan(const CompiledGraph& graph, const Values& inputs, bool records) {
  Values values = inputs;
  std::vector<size_t> firsts;
  size_t bytes = 0;
  for (const GraphStep& step : graph.steps) {
    const size_t first = values.size();
    firsts.push_back(first);
    graph.run_step(step, values, records);
    for (size_t value = first; value < values.size(); ++value) {
      if (values[value].isTensor() && values[value].toTensor().defined()) bytes += values[value].toTensor().nbytes();
    }
    if (bytes <= most_bytes_of_values) continue;
    for (const GraphStep& earlier : graph.steps) {
      for (const size_t index : earlier.last) {
        if (index < values.size()) values[index] = {};
      }
      if (&earlier == &step) break;
    }
  }
  Values results = graph.results_of(values);
  auto known = std::make_shared<Known>();
  known->key = InputKey(inputs, records);
  if (bytes <= most_bytes_of_values) known->plan = plan_of(graph, values, firsts);
  const std::scoped_lock lock(mutex_);
  if (known_.size() == most_known) known_.erase(known_.begin());
  known_.push_back(std::move(known));
  return results;
}

}  // namespace fourfold::graph
