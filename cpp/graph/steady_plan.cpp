#include "steady_plan.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>

#include "values.h"

namespace fourfold::graph {
namespace {

constexpr size_t most_bytes_of_block = size_t{1} << 22;  // more would not stay in the caches
constexpr size_t alignment = 64;

size_t bytes_of(const TensorLayout& layout) {
  int64_t elements = 1;
  for (size_t d = 0; d < layout.sizes.size(); ++d) elements += (layout.sizes[d] - 1) * layout.strides[d];
  return static_cast<size_t>(elements) * c10::elementSize(layout.dtype);
}

// The overload that writes its result into a given tensor, if it has a kernel of its own: the others copy.
std::optional<c10::OperatorHandle> operation_into(const c10::OperatorHandle& operation) {
  const c10::OperatorName& name = operation.operator_name();
  const auto& arguments = operation.schema().arguments();
  for (const std::string& overload : {std::string("out"), name.overload_name + "_out"}) {
    const auto found = c10::Dispatcher::singleton().findSchema({name.name, overload});
    if (!found.has_value() || !found->hasKernelForDispatchKey(c10::DispatchKey::CPU)) continue;
    const auto& others = found->schema().arguments();
    const auto is_same = [](const c10::Argument& a, const c10::Argument& b) { return a.name() == b.name() && *a.type() == *b.type(); };
    if (others.size() == arguments.size() + 1 && std::equal(arguments.begin(), arguments.end(), others.begin(), is_same)) return found;
  }
  return std::nullopt;
}

class Planner {
 public:
  Planner(const CompiledGraph& graph, const Values& values, const std::vector<size_t>& firsts)
      : graph_(graph), values_(values), is_known_(values.size()), last_(values.size()), is_output_(values.size()) {
    plan_->firsts = firsts;
  }

  std::unique_ptr<const SteadyPlan> plan() {
    if (plan_->firsts.empty() || !find_owners()) return nullptr;
    for (size_t step = 0; step < graph_.steps.size(); ++step) {
      if (!add(step)) return nullptr;
    }
    const auto prepares = [](const Action& action) { return action.way == Way::substitute || action.way == Way::convolution; };
    if (!plan_->reads_constants && plan_->places.empty() && std::none_of(plan_->actions.begin(), plan_->actions.end(), prepares)) return nullptr;
    place();
    add_last();
    plan_->is_of_call = is_known_;
    plan_->is_of_call.flip();
    if (plan_->bytes > most_bytes_of_block) return nullptr;
    return std::move(plan_);
  }

 private:
  size_t inputs() const { return plan_->firsts.front(); }
  size_t end_of(size_t step) const { return step + 1 < plan_->firsts.size() ? plan_->firsts[step + 1] : values_.size(); }

  // Whose memory each value is part of. False if it isn't clear.
  bool find_owners() {
    owners_.resize(values_.size());
    std::map<const c10::StorageImpl*, size_t> known;
    for (size_t value = 0; value < values_.size(); ++value) {
      owners_[value] = value;
      if (!values_[value].isTensor() || !values_[value].toTensor().defined()) continue;
      const at::Tensor& tensor = values_[value].toTensor();
      if (!is_plain_tensor(tensor) || !tensor.is_cpu()) return false;
      const auto [place, is_new] = known.emplace(tensor.storage().unsafeGetStorageImpl(), value);
      owners_[value] = place->second;
    }
    for (size_t step = 0; step < graph_.steps.size(); ++step) {
      for (size_t value = plan_->firsts[step]; value < end_of(step); ++value) last_[value] = step;
    }
    for (size_t step = 0; step < graph_.steps.size(); ++step) {
      for (const size_t value : graph_.steps[step].last) last_[value] = step;
    }
    for (const GraphStep& step : graph_.steps) find_written(step.call);
    for (const int64_t output : graph_.outputs) {
      if (output < 0) continue;
      is_output_[static_cast<size_t>(output)] = true;
      escapes_.insert(owners_[static_cast<size_t>(output)]);
    }
    return true;
  }

  void find_written(const decltype(GraphStep::call)& call) {
    if (const auto* program = std::get_if<ProgramStep>(&call)) {
      for (const Update& update : program->updates) written_.insert(owners_[update.value]);
    }
    const auto* const operation = std::get_if<OperatorStep>(&call);
    if (operation == nullptr || !operation->handle.schema().is_mutable()) return;
    for (const size_t value : read_by(*operation)) written_.insert(owners_[value]);
  }

  // Whether a value is the same in each call.
  bool is_constant(size_t value) const {
    if (!is_tensor(value)) return values_[value].isScalar() || values_[value].isBool() || values_[value].isNone();
    return is_constant_.count(value) > 0 || (value < graph_.constants.size() && graph_.constants[value]);
  }

  // Whether a step is left out, because its results follow from constants alone.
  bool keeps_constants(size_t begin, size_t end, const std::vector<size_t>& read) {
    if (graph_.are_unchanged == nullptr || !std::all_of(read.begin(), read.end(), [&](size_t value) { return is_constant(value); })) return false;
    for (size_t value = begin; value < end; ++value) {
      if (!is_tensor(value) || escapes_.count(owners_[value]) > 0 || written_.count(owners_[value]) > 0) return false;
    }
    for (size_t value = begin; value < end; ++value) {
      know(value);
      is_constant_.insert(value);
    }
    plan_->reads_constants = plan_->reads_constants || begin < end;
    return begin < end;
  }

  bool is_tensor(size_t value) const { return values_[value].isTensor() && values_[value].toTensor().defined(); }
  bool is_new(size_t value) const { return is_tensor(value) && owners_[value] == value; }
  // Not a view as of another dtype, or one that is conjugated when it is read.
  bool is_read_as_it_lies(size_t value) const {
    const at::Tensor& tensor = values_[value].toTensor();
    return !tensor.is_conj() && tensor.scalar_type() == values_[owners_[value]].toTensor().scalar_type();
  }
  bool is_in_block(size_t owner) const { return in_block_.count(owner) > 0; }

  void know(size_t value) {
    plan_->constants.emplace_back(value, values_[value]);
    is_known_[value] = true;
  }

  // A value in memory of this graph's own.
  void keep(size_t value) {
    plan_->kept.push_back({value, owners_[value], layout_of(values_[value].toTensor())});
    is_known_[value] = true;
  }

  // Whether a step is left out, because its results are parts of memory that is there.
  bool keeps_parts(size_t begin, size_t end) {
    const auto is_part = [&](size_t value) {
      return is_tensor(value) && is_in_block(owners_[value]) && !is_output_[value] && is_read_as_it_lies(value);
    };
    for (size_t value = begin; value < end; ++value) {
      if (!is_part(value)) return false;
    }
    for (size_t value = begin; value < end; ++value) keep(value);
    return begin < end;
  }

  // Gives a new tensor a place in the block, or memory of its own in each call.
  void make(size_t value, Action& action) {
    const at::Tensor& tensor = values_[value].toTensor();
    if (escapes_.count(value) > 0 || tensor.storage_offset() != 0 || !is_read_as_it_lies(value)) {
      action.made.emplace_back(value, layout_of(tensor));
      return;
    }
    in_block_.insert(value);
    begins_[value] = action.step;
    keep(value);
  }

  void as_ever(size_t step) {
    Action action{step, Way::as_ever, {}, {}, {}, {}, std::nullopt};
    for (size_t value = plan_->firsts[step]; value < end_of(step); ++value) {
      action.results.push_back(value);
      if (is_new(value)) action.expected.emplace_back(value, layout_of(values_[value].toTensor()));
    }
    plan_->actions.push_back(std::move(action));
  }

  void into_memory(size_t step, Way way, std::optional<c10::OperatorHandle> operation = std::nullopt) {
    Action action{step, way, {}, {}, {}, {}, std::move(operation)};
    for (size_t value = plan_->firsts[step]; value < end_of(step); ++value) {
      action.results.push_back(value);
      if (is_new(value)) make(value, action);
    }
    plan_->actions.push_back(std::move(action));
  }

  bool add(size_t step) {
    return std::visit([&](const auto& call) { return add(step, call); }, graph_.steps[step].call);
  }

  bool add(size_t step, const NumberStep&) { return know(plan_->firsts[step]), true; }

  // The reader also folds views of buffers, which the graph may change.
  bool add(size_t step, const ConstantStep&) {
    const size_t value = plan_->firsts[step];
    if (written_.count(owners_[value]) == 0) is_constant_.insert(value);
    return know(value), true;
  }

  bool add(size_t step, const ItemStep&) {
    if (!keeps_parts(plan_->firsts[step], end_of(step))) as_ever(step);
    return true;
  }

  bool add(size_t step, const ConcatenationStep&) {
    const size_t whole = plan_->firsts[step];
    if (escapes_.count(whole) > 0) return as_ever(step), true;
    in_block_.insert(whole);
    begins_[whole] = step;
    for (size_t value = whole; value < end_of(step); ++value) keep(value);
    return true;
  }

  bool add_nested(size_t step) {
    for (size_t value = plan_->firsts[step]; value < end_of(step); ++value) {
      if (!values_[value].isTensor() && !values_[value].isNone()) return false;
    }
    return as_ever(step), true;
  }
  bool add(size_t step, const LoopStep&) { return add_nested(step); }
  bool add(size_t step, const CallStep&) { return add_nested(step); }

  bool add(size_t step, const ProgramStep& program) {
    const auto is_read = [&](size_t k) {
      const bool is_number = fourfold_program_number(program.program.program, static_cast<int32_t>(k)) >= 0;
      return is_number != values_[program.inputs[k]].isTensor();
    };
    bool suits = program.program.program != nullptr;
    for (size_t k = 0; suits && k < program.inputs.size(); ++k) suits = is_read(k);
    for (const Update& update : program.updates) suits = suits && update.is_new;
    if (program.updates.empty() && keeps_constants(plan_->firsts[step], end_of(step), program.inputs)) return true;
    suits ? into_memory(step, Way::program) : as_ever(step);
    if (!suits) return true;
    for (const Update& update : program.updates) {
      const size_t value = plan_->firsts[step] + update.output;
      if (is_known_[update.value] && !is_output_[value]) keep(value);
    }
    return true;
  }

  bool add(size_t step, const OperatorStep& call) {
    const size_t begin = plan_->firsts[step], end = end_of(step);
    const c10::OperatorHandle& handle = call.handle;
    const std::string& name = handle.operator_name().name;
    const auto is_of = [&](const char* space) { return name.rfind(space, 0) == 0; };
    if (!is_of("aten::") && !is_of("prims::") && !is_of("fourfold::")) return false;
    if (has_sizes_of_data(call, values_)) return false;
    const bool is_size = is_of("aten::sym_") && name != "aten::sym_storage_offset";
    for (size_t value = begin; value < end; ++value) {
      const c10::IValue& result = values_[value];
      if (is_size) know(value);
      if (!is_size && !result.isTensor() && !result.isNone() && !result.isTensorList()) return false;
    }
    if (is_size) return true;
    if (!handle.schema().is_mutable() && !handle.hasTag(at::Tag::nondeterministic_seeded)) {
      if (keeps_constants(begin, end, read_by(call)) || keeps_parts(begin, end)) return true;
      if (end == begin + 1 && is_new(begin) && prepare(step, call)) return true;
    }
    return as_ever(step), true;
  }

  bool prepare(size_t step, const OperatorStep& call) {
    torch::jit::Stack stack;
    for (const OperatorArgument& argument : call.arguments) stack.push_back(argument.value(values_));
    const std::string& name = call.handle.operator_name().name;
    if (call.substitute == convolve_by_products && FewPositions::of(stack, call.own.get()) != nullptr) {
      into_memory(step, Way::convolution);
    } else if (is_substituted(call, stack, values_[plan_->firsts[step]].toTensor())) {
      into_memory(step, Way::substitute);
    } else if (name == "aten::relu" && is_float(stack[0].toTensor()) && is_float(values_[plan_->firsts[step]].toTensor())) {
      into_memory(step, Way::relu);
    } else if (auto operation = operation_into(call.handle)) {
      into_memory(step, Way::operation, std::move(operation));
    } else {
      return false;
    }
    return true;
  }

  static bool is_substituted(const OperatorStep& call, torch::jit::Stack stack, const at::Tensor& result) {
    if (call.substitute == nullptr || call.substitute == convolve_by_products || !result.is_contiguous()) return false;
    const at::Tensor memory = at::empty(result.sizes(), result.options());
    return call.substitute(stack, call.own.get(), &memory);
  }

  static bool is_float(const at::Tensor& tensor) { return tensor.scalar_type() == at::kFloat && tensor.is_contiguous(); }

  // Places the tensors in the block: those that are needed at the same time lie apart. The largest first.
  void place() {
    struct Placed {
      size_t value, begin, end, first, last;  // bytes; steps
    };
    std::map<size_t, size_t> last;
    for (size_t value = 0; value < values_.size(); ++value) {
      size_t& end = last[owners_[value]];
      end = std::max(end, last_[value]);
    }
    std::vector<Placed> placed;
    for (const Kept& kept : plan_->kept) {
      if (kept.value != kept.owner) continue;
      const size_t bytes = (bytes_of(kept.layout) + alignment - 1) / alignment * alignment;
      placed.push_back({kept.value, 0, bytes, begins_[kept.value], last[kept.value]});
    }
    std::stable_sort(placed.begin(), placed.end(), [](const Placed& a, const Placed& b) { return a.end > b.end; });
    for (auto each = placed.begin(); each != placed.end(); ++each) {
      const size_t bytes = each->end;
      std::vector<std::pair<size_t, size_t>> taken;
      for (auto other = placed.begin(); other != each; ++other) {
        if (other->first <= each->last && each->first <= other->last) taken.emplace_back(other->begin, other->end);
      }
      std::sort(taken.begin(), taken.end());
      size_t begin = 0;
      for (const auto& [from, to] : taken) {
        if (begin + bytes <= from) break;
        begin = std::max(begin, to);
      }
      each->begin = begin;
      each->end = begin + bytes;
      plan_->places.emplace_back(each->value, begin);
      plan_->bytes = std::max(plan_->bytes, each->end);
    }
  }

  void add_last() {
    size_t next = 0;
    for (size_t k = 0; k < plan_->actions.size(); ++k) {
      const size_t end = k + 1 < plan_->actions.size() ? plan_->actions[k + 1].step : graph_.steps.size();
      for (; next < end; ++next) {
        for (const size_t value : graph_.steps[next].last) {
          if (!is_known_[value]) plan_->actions[k].last.push_back(value);
        }
      }
    }
  }

  const CompiledGraph& graph_;
  const Values& values_;
  std::unique_ptr<SteadyPlan> plan_ = std::make_unique<SteadyPlan>();
  std::vector<size_t> owners_;
  std::set<size_t> escapes_;   // owners of results
  std::set<size_t> in_block_;  // owners
  std::set<size_t> written_;   // owners of what steps change
  std::set<size_t> is_constant_;
  std::map<size_t, size_t> begins_;
  std::vector<bool> is_known_;  // values that each call finds
  std::vector<size_t> last_;
  std::vector<bool> is_output_;
};

}  // namespace

TensorLayout layout_of(const at::Tensor& tensor) {
  TensorLayout layout{{}, {}, tensor.scalar_type(), tensor.storage_offset()};
  layout.sizes.assign(tensor.sizes().begin(), tensor.sizes().end());
  layout.strides.assign(tensor.strides().begin(), tensor.strides().end());
  return layout;
}

bool lies_as(const at::Tensor& tensor, const TensorLayout& layout) {
  return tensor.scalar_type() == layout.dtype && tensor.sizes() == at::IntArrayRef(layout.sizes) &&
         tensor.strides() == at::IntArrayRef(layout.strides);
}

std::unique_ptr<const SteadyPlan> plan_of(const CompiledGraph& graph, const Values& values, const std::vector<size_t>& firsts) {
  return Planner(graph, values, firsts).plan();
}

}  // namespace fourfold::graph
