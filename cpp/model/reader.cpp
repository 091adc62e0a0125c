#include "reader.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <limits>
#include <numeric>
#include <string_view>
#include <utility>

#include "signature.h"
#include "tensor_file.h"

namespace fourfold::model {

// A program of the file; several steps may call it. by_operators: the same computation by torch's operators.
struct Reader::Program {
  std::string name;
  fourfold_program* loaded = nullptr;  // null if no backend runs programs on the device
  std::vector<ValueKind> inputs;
  size_t outputs = 0;
  std::shared_ptr<const CompiledGraph> by_operators;
  mutable std::atomic<bool> has_warned = false;

  Program() = default;
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
  ~Program() { fourfold_program_delete(loaded); }

  void report(const c10::Error& error, const Values& given) const {
    const bool is_traced = std::any_of(given.begin(), given.end(), [](const c10::IValue& value) {
      return value.isTensor() && value.toTensor().defined() &&
             (is_wrapped(value.toTensor()) || value.toTensor().unsafeGetTensorImpl()->is_python_dispatch());
    });
    if (is_traced) return;
    const char* const strict = std::getenv("FOURFOLD_STRICT");
    if (strict != nullptr && std::string_view(strict) == "1") throw;  // rethrows: called from a catch block
    if (!has_warned.exchange(true)) {
      TORCH_WARN("fourfold could not run ", name, " as a program, and calls torch's operators: ", error.what_without_backtrace());
    }
  }
};

void Reader::Scope::add(ValueKind kind, bool is_part, const std::vector<size_t>& aliased) {
  kinds.push_back(kind);
  is_new.push_back(is_part);
  last.push_back(graph.steps.size());  // for unused results, the step itself
  constants.add(1, aliased);
}

void Reader::Scope::read(size_t index) {
  last[index] = graph.steps.size();
  const auto found = parts.find(index);
  bool is_written = !is_new[index];
  for (size_t part = 1; found != parts.end() && part <= found->second; ++part) is_written = is_written && !is_new[index + part];
  if (!is_written) throw Refused("expected the parts of a concatenation to be written before they are read");
}

void Reader::Scope::write(size_t index) {
  last[index] = graph.steps.size();
  is_new[index] = false;
}

namespace {

constexpr int deepest = 16;  // graphs within graphs

ValueKind kind_of_number(int32_t dtype) {
  const auto type = static_cast<at::ScalarType>(dtype);
  return c10::isFloatingType(type) ? ValueKind::floating : type == at::kBool ? ValueKind::boolean : ValueKind::integer;
}

bool is_number(ValueKind kind) {
  return kind == ValueKind::integer || kind == ValueKind::floating || kind == ValueKind::boolean || kind == ValueKind::number;
}

void expect_kind(ValueKind given, ValueKind expected, const std::string& what) {
  const bool fits = is_number(expected) ? is_number(given) : given == expected;
  if (!fits) throw Refused("expected " + what + " to be " + name_of(expected) + ", but got " + name_of(given));
}

void expect_results(const Json& step, size_t results) {
  const Json* const given = step.find("results");
  const int64_t expected = given == nullptr ? 1 : given->as_integer("results");
  if (expected != static_cast<int64_t>(results)) {
    throw Refused("expected a step to have " + std::to_string(expected) + " results, but it has " + std::to_string(results) +
                  " here; use the torch that the file was saved with");
  }
}

std::vector<int64_t> sizes_of(const Json& given, const char* what) {
  std::vector<int64_t> found;
  for (const Json& size : given.as_list(what)) {
    found.push_back(static_cast<int64_t>(size.as_index(what, std::numeric_limits<int64_t>::max())));
  }
  return found;
}

// Whether the strides are without overlaps and gaps.
bool is_dense(const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides) {
  std::vector<size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return std::pair(strides[a], sizes[a]) < std::pair(strides[b], sizes[b]); });
  int64_t next = 1;
  for (const size_t d : order) {
    if (sizes[d] == 1) continue;
    if (sizes[d] == 0) return true;
    if (strides[d] != next || __builtin_mul_overflow(next, sizes[d], &next)) return false;
  }
  return true;
}

}  // namespace

void Reader::read_programs(const Json& given) {
  for (const Json& described : given.as_list("programs")) {
    auto program = std::make_shared<Program>();
    program->name = described.at("name", "a program").as_string("a name");
    const std::string& text = described.at("text", "a program").as_string("a program's text");
    const auto length = static_cast<int64_t>(text.size());
    const auto load = [&](at::Device device) {
      return fourfold_program_new(text.data(), length, static_cast<int32_t>(device.type()), device.has_index() ? device.index() : 0);
    };
    program->loaded = load(at::kCPU);  // checks the program for any device
    if (program->loaded == nullptr) throw Refused(fourfold_program_error());
    for (int32_t k = 0; k < fourfold_program_inputs(program->loaded); ++k) {
      const int32_t number = fourfold_program_number(program->loaded, k);
      program->inputs.push_back(number < 0 ? ValueKind::tensor : kind_of_number(number));
    }
    program->outputs = static_cast<size_t>(fourfold_program_outputs(program->loaded));
    if (!surroundings_.device.is_cpu()) {
      fourfold_program_delete(std::exchange(program->loaded, generator_ < 0 ? nullptr : load(surroundings_.device)));
    }
    if (program->loaded != nullptr) fourfold_program_generate(program->loaded, generator_);
    program->by_operators = graph_of(described.at("operators", "a program"), program->inputs);
    const auto& results = program->by_operators->outputs;
    if (results.size() != program->outputs) {
      throw Refused("expected the operators of " + shown(program->name) + " to have " + std::to_string(program->outputs) +
                    " results, as the program, but got " + std::to_string(results.size()));
    }
    for (const int64_t result : results) {
      const ValueKind kind = result < 0 ? ValueKind::other : kinds_of_last_[static_cast<size_t>(result)];
      expect_kind(kind, ValueKind::tensor, "a program's result");
    }
    programs_.push_back(std::move(program));
  }
}

std::shared_ptr<CompiledGraph> Reader::graph_of(const Json& given, const std::vector<ValueKind>& inputs, Values constants) {
  if (++depth_ > deepest) throw Refused("expected no deeper graphs within graphs");
  auto graph = std::make_shared<CompiledGraph>();
  Scope scope{{}, {}, {}, *graph, {}, {}, {}};
  for (const ValueKind kind : inputs) scope.add(kind);
  constants.resize(inputs.size());
  scope.constants = Constants(std::move(constants));
  for (const Json& step : given.at("steps", "a graph").as_list("steps")) {
    Call call = step_of(step, scope);  // before the step is added, because it reads earlier values
    graph->steps.push_back({std::move(call), {}});
  }
  std::vector<bool> is_result(scope.kinds.size());
  for (const Json& output : given.at("outputs", "a graph").as_list("outputs")) {
    if (output.is(Json::Kind::null)) {
      graph->outputs.push_back(-1);
      continue;
    }
    graph->outputs.push_back(static_cast<int64_t>(value_of(output, scope)));
    const auto result = static_cast<size_t>(graph->outputs.back());
    is_result[result] = true;
    share(scope, result);
    // Callers may change a result's sizes, so each call has a view of its own.
    if (const auto view = scope.folded.find(result); view != scope.folded.end()) {
      graph->steps[view->second.first].call = view->second.second;
    }
  }
  for (size_t value = 0; value < scope.last.size(); ++value) {
    if (!is_result[value] && scope.last[value] < graph->steps.size()) graph->steps[scope.last[value]].last.push_back(value);
  }
  kinds_of_last_ = std::move(scope.kinds);
  --depth_;
  return graph;
}

void Reader::share(const Scope& scope, size_t value) {
  const auto& behind = scope.constants.behind(value);
  shared_.insert(shared_.end(), behind.begin(), behind.end());
}

bool Reader::is_shared(const at::Tensor& tensor) const {
  return std::any_of(shared_.begin(), shared_.end(), [&](const at::Tensor& each) { return each.is_alias_of(tensor); });
}

std::vector<Weight> Reader::take_weights() {
  for (const at::Tensor& tensor : shared_) hand_out(weights_.all(), tensor);
  return weights_.all();
}

size_t Reader::value_of(const Json& given, Scope& scope) const {
  const size_t index = given.as_index("a value", scope.kinds.size());
  scope.read(index);
  return index;
}

std::vector<size_t> Reader::inputs_of(const Json& given, Scope& scope) const {
  std::vector<size_t> found;
  for (const Json& input : given.at("inputs", "a step").as_list("inputs")) found.push_back(value_of(input, scope));
  return found;
}

Reader::Call Reader::step_of(const Json& given, Scope& scope) {
  given.as_object("a step");
  if (given.find("operator") != nullptr) return operator_step_of(given, scope);
  if (given.find("program") != nullptr) return program_step_of(given, scope);
  if (given.find("item") != nullptr) return item_step_of(given, scope);
  if (given.find("constant") != nullptr) return constant_step_of(given, scope);
  if (given.find("number") != nullptr) return number_step_of(given, scope);
  if (given.find("concatenation") != nullptr) return concatenation_step_of(given, scope);
  if (given.find("loop") != nullptr) return loop_step_of(given, scope);
  if (given.find("graph") != nullptr) return call_step_of(given, scope);
  throw Refused("expected a step to be an operator, a program, an item, a constant, a number, a concatenation, a loop or a graph");
}

Reader::Call Reader::program_step_of(const Json& given, Scope& scope) {
  const auto program = programs_[given.at("program", "a step").as_index("a program", programs_.size())];
  std::vector<size_t> inputs = inputs_of(given, scope);
  if (inputs.size() != program->inputs.size()) {
    throw Refused("expected " + shown(program->name) + " to be given " + std::to_string(program->inputs.size()) +
                  " inputs, but got " + std::to_string(inputs.size()));
  }
  for (size_t k = 0; k < inputs.size(); ++k) expect_kind(scope.kinds[inputs[k]], program->inputs[k], "a program's input");
  std::vector<Update> updates;
  if (const Json* listed = given.find("updates")) {
    std::vector<bool> is_updated(program->outputs);
    for (const Json& update : listed->as_list("updates")) {
      const auto& parts = update.as_list("an update");
      if (parts.size() != 2) throw Refused("expected an update to be an output and a value");
      const size_t output = parts[0].as_index("an update's output", program->outputs);
      const size_t value = parts[1].as_index("a value", scope.kinds.size());
      expect_kind(scope.kinds[value], ValueKind::tensor, "an updated value");
      if (is_updated[output]) throw Refused("expected a program's output to update one value");
      is_updated[output] = true;
      // Whether the value is a part of a concatenation that nothing has read or written yet.
      const bool is_new = scope.is_new[value] && std::find(inputs.begin(), inputs.end(), value) == inputs.end();
      scope.write(value);
      updates.push_back({output, value, is_new});
      share(scope, value);
    }
  }
  expect_results(given, program->outputs);
  for (size_t k = 0; k < program->outputs; ++k) scope.add(ValueKind::tensor);
  const auto by_operators = [program](const c10::Error* error, const Values& read, Values& values) {
    if (error != nullptr) program->report(*error, read);
    for (c10::IValue& result : program->by_operators->run(read, /*records=*/true)) values.push_back(std::move(result));
  };
  return ProgramStep{{program->loaded, program->name.c_str(), surroundings_.device}, program, by_operators, std::move(inputs), std::move(updates)};
}

Reader::Call Reader::operator_step_of(const Json& given, Scope& scope) {
  const c10::OperatorHandle handle = operator_of(given.at("operator", "a step").as_string("an operator"), surroundings_);
  OperatorStep step = model::operator_step_of(handle, given.at("arguments", "an operator"), scope.kinds, surroundings_);
  const bool copies = handle.operator_name().name == "aten::copy_" && step.arguments[0].index >= 0;
  const auto read = read_by(step);
  for (size_t k = copies ? 1 : 0; k < read.size(); ++k) scope.read(read[k]);
  if (copies) scope.write(read[0]);
  if (handle.schema().is_mutable() && step.arguments[0].index >= 0) share(scope, read[0]);  // nothing of it may be packed
  expect_results(given, handle.schema().returns().size());
  const graph::Values own = scope.constants.at(weights_of(step));
  if (!own.empty() && std::all_of(own.begin(), own.end(), [](const c10::IValue& each) { return each.isTensor(); })) step.own = weights_.of(own, step);
  const at::Tensor view = view_of_constants(step, scope.constants, scope.kinds.size());
  for (const ValueKind kind : results_of(handle)) scope.add(kind, false, aliased_by(step));
  if (!view.defined()) return step;
  scope.constants.set_last(view);
  scope.folded.emplace(scope.kinds.size() - 1, std::pair(scope.graph.steps.size(), step));
  return ConstantStep{view};
}

Reader::Call Reader::item_step_of(const Json& given, Scope& scope) {
  const auto& parts = given.at("item", "a step").as_list("an item");
  if (parts.size() != 2) throw Refused("expected an item to be a list and an index");
  const size_t list = value_of(parts[0], scope);
  expect_kind(scope.kinds[list], ValueKind::tensors, "a list");
  scope.add(ValueKind::tensor, false, {list});
  return ItemStep{list, parts[1].as_index("an item's index", std::numeric_limits<int32_t>::max())};
}

Reader::Call Reader::constant_step_of(const Json& given, Scope& scope) {
  const std::string& name = given.at("constant", "a step").as_string("a constant");
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) throw Refused("expected a tensor of the file, but got " + shown(name));
  scope.add(ValueKind::tensor);
  scope.constants.set_last(found->second);
  return ConstantStep{found->second};
}

Reader::Call Reader::number_step_of(const Json& given, Scope& scope) {
  NumberStep step{given.at("number", "a step").as_string("an operation"), {}};
  std::vector<ValueKind> kinds;
  for (const Json& operand : given.at("operands", "a number").as_list("operands")) {
    if (const Json* value = operand.find("value")) {
      const size_t index = value_of(*value, scope);
      kinds.push_back(scope.kinds[index]);
      step.operands.emplace_back(static_cast<int64_t>(index), c10::IValue());
    } else {
      step.operands.emplace_back(-1, constant_of(operand));
      const c10::IValue& constant = step.operands.back().second;
      kinds.push_back(constant.isInt() ? ValueKind::integer : constant.isDouble() ? ValueKind::floating
                      : constant.isBool() ? ValueKind::boolean : ValueKind::other);
    }
    expect_kind(kinds.back(), ValueKind::number, "an operand");
  }
  const size_t expected = operands_of(step.operation);
  if (expected == 0) {
    throw Refused("expected arithmetic that fourfold knows, but got " + shown(step.operation) + "; a newer fourfold may know it");
  }
  if (kinds.size() != expected) {
    throw Refused("expected " + shown(step.operation) + " to have " + std::to_string(expected) + " operands, but got " +
                  std::to_string(kinds.size()));
  }
  switch (result_of(step.operation)) {
    case NumberResult::boolean: scope.add(ValueKind::boolean); break;
    case NumberResult::floating: scope.add(ValueKind::floating); break;
    case NumberResult::integer: scope.add(ValueKind::integer); break;
    case NumberResult::as_operands: {
      const auto count = [&kinds](ValueKind kind) { return std::count(kinds.begin(), kinds.end(), kind); };
      const bool are_integers = count(ValueKind::integer) == static_cast<int64_t>(kinds.size());
      scope.add(are_integers ? ValueKind::integer : count(ValueKind::floating) > 0 ? ValueKind::floating : ValueKind::number);
    }
  }
  return step;
}

Reader::Call Reader::concatenation_step_of(const Json& given, Scope& scope) {
  const Json& described = given.at("concatenation", "a step");
  ConcatenationStep step{sizes_of(described.at("sizes", "a concatenation"), "a size"),
                         sizes_of(described.at("strides", "a concatenation"), "a stride"),
                         dtype_of(described.at("dtype", "a concatenation").as_string("a dtype")), 0,
                         sizes_of(described.at("lengths", "a concatenation"), "a length"), surroundings_.device};
  if (step.sizes.size() != step.strides.size()) throw Refused("expected a concatenation to have a stride for each size");
  if (!is_dense(step.sizes, step.strides)) throw Refused("expected a concatenation without gaps and overlaps");
  step.dim = static_cast<int64_t>(described.at("dimension", "a concatenation").as_index("a dimension", step.sizes.size()));
  int64_t length = 0;
  for (const int64_t part : step.lengths) {
    if (__builtin_add_overflow(length, part, &length)) throw Refused("expected shorter parts of a concatenation");
  }
  if (length != step.sizes[static_cast<size_t>(step.dim)]) {
    throw Refused("expected the parts of a concatenation to have " + std::to_string(step.sizes[static_cast<size_t>(step.dim)]) +
                  " elements together, but got " + std::to_string(length));
  }
  scope.parts[scope.kinds.size()] = step.lengths.size();
  scope.add(ValueKind::tensor);
  for (size_t k = 0; k < step.lengths.size(); ++k) scope.add(ValueKind::tensor, /*is_part=*/true);
  return step;
}

Reader::Call Reader::loop_step_of(const Json& given, Scope& scope) {
  const Json& described = given.at("loop", "a step");
  LoopStep step{nullptr, {}, {}, 0, described.at("reverse", "a loop").as_bool("reverse"), inputs_of(given, scope)};
  for (const Json& trail : described.at("trails", "a loop").as_list("trails")) step.trails.push_back(trail.as_bool("a trail"));
  for (const Json& feed : described.at("feeds", "a loop").as_list("feeds")) {
    step.feeds.push_back(feed.as_index("a feed", step.trails.size()));
  }
  step.series = described.at("series", "a loop").as_index("series", std::numeric_limits<int32_t>::max());
  if (step.inputs.size() < 1 + step.feeds.size() + step.series) throw Refused("expected a loop to be given its states and series");
  expect_kind(scope.kinds[step.inputs[0]], ValueKind::integer, "the number of steps");
  std::vector<ValueKind> kinds;
  for (size_t k = 1; k < step.inputs.size(); ++k) {
    kinds.push_back(scope.kinds[step.inputs[k]]);
    if (k <= step.feeds.size() + step.series) expect_kind(kinds.back(), ValueKind::tensor, "a state or series");
  }
  for (size_t k = 0; k < step.trails.size(); ++k) {
    const bool is_read = std::find(step.feeds.begin(), step.feeds.end(), k) != step.feeds.end();
    if (step.trails[k] && !is_read) throw Refused("expected a state whose values are all kept to be read");
  }
  Values constants = scope.constants.at(step.inputs);
  constants.erase(constants.begin());  // the number of steps
  std::fill_n(constants.begin(), step.feeds.size() + step.series, c10::IValue());
  step.body = graph_of(described.at("body", "a loop"), kinds, std::move(constants));
  if (step.body->outputs.size() < step.trails.size()) throw Refused("expected a loop's body to return its states");
  for (const int64_t output : step.body->outputs) {
    const ValueKind kind = output < 0 ? ValueKind::other : kinds_of_last_[static_cast<size_t>(output)];
    expect_kind(kind, ValueKind::tensor, "a result of a loop's body");
  }
  for (size_t k = 0; k < step.body->outputs.size(); ++k) scope.add(ValueKind::tensor, false, step.inputs);
  return step;
}

Reader::Call Reader::call_step_of(const Json& given, Scope& scope) {
  CallStep step{nullptr, inputs_of(given, scope)};
  std::vector<ValueKind> kinds;
  for (const size_t index : step.inputs) kinds.push_back(scope.kinds[index]);
  const auto graph = graph_of(given.at("graph", "a step"), kinds, scope.constants.at(step.inputs));
  for (const int64_t output : graph->outputs) {
    scope.add(output < 0 ? ValueKind::other : kinds_of_last_[static_cast<size_t>(output)], false, step.inputs);
  }
  step.graph = graph;
  return step;
}

}  // namespace fourfold::model
