#include "steps.h"

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/jit/python/pybind_utils.h>

#include <string>
#include <utility>

#include "graph.h"
#include "held.h"
#include "program.h"
#include "values.h"

namespace fourfold::bindings {
namespace {

using namespace graph;

OperatorArgument argument_of(pybind11::handle given, const c10::Argument& argument, const c10::TypePtr& type) {
  const auto pair = given.cast<pybind11::tuple>();
  const auto what = pair[0].cast<std::string>();
  if (what == "value") return {pair[1].cast<int64_t>(), {}, nullptr, {}};
  if (what == "wrapped") return {pair[1].cast<int64_t>(), {}, nullptr, {}, true};
  if (what == "default") return {-1, argument.default_value().value(), nullptr, {}};
  if (what == "constant") return {-1, torch::jit::toIValue(pair[1], type, argument.N()), nullptr, {}};
  OperatorArgument made{-1, {}, element_of(type), {}};
  for (const auto part : pair[1].cast<pybind11::list>()) made.parts.push_back(argument_of(part, argument, made.element));
  return made;
}

// arguments: one for each argument of the operator: ("value", index), ("wrapped", index of a number), ("list", its
// parts), ("constant", value) or ("default", None).
OperatorStep make_operator_step(const char* name, const char* overload, PyObject* arguments) {
  OperatorStep step{c10::Dispatcher::singleton().findSchemaOrThrow(name, overload), {}};
  step.substitute = substitute_of(step.handle);
  step.lay_out = lay_out_of(step.handle);
  const auto& expected = step.handle.schema().arguments();
  const torch::jit::ToIValueAllowNumbersAsTensors as_python_allows(true);
  const auto given = pybind11::handle(arguments).cast<pybind11::list>();
  TORCH_CHECK_VALUE(given.size() == expected.size(), "expected ", std::to_string(expected.size()), " arguments, but got ",
                    std::to_string(given.size()));
  for (size_t k = 0; k < expected.size(); ++k) {
    step.arguments.push_back(argument_of(given[k], expected[k], expected[k].real_type()));
  }
  return step;
}

// Calls a Python function with values, with or without the GIL. error: passed as its first argument unless null.
Values call_python(PyObject* function, const c10::Error* error, const Values& inputs) {
  const pybind11::gil_scoped_acquire held_gil;
  pybind11::list given;
  if (error != nullptr) {
    const bool is_type_error = dynamic_cast<const c10::TypeError*>(error) != nullptr;
    given.append(pybind11::handle(is_type_error ? PyExc_TypeError : PyExc_ValueError)(error->what_without_backtrace()));
  }
  for (const c10::IValue& input : inputs) given.append(pybind11::reinterpret_steal<pybind11::object>(object_of(input)));
  const pybind11::object results = pybind11::handle(function)(*given);
  if (THPVariable_Check(results.ptr())) return {value_of(results.ptr())};
  Values values;
  for (const auto result : results) values.push_back(value_of(result.ptr()));
  return values;
}

GraphStep program_step_of(const pybind11::tuple& given, std::vector<size_t> inputs, std::vector<size_t> last) {
  std::vector<Update> updates;
  for (const auto& [output, value, is_new] : given[2].cast<std::vector<std::tuple<size_t, size_t, bool>>>()) {
    updates.push_back({output, value, is_new});
  }
  const auto eagerly = std::make_shared<Held>(pybind11::handle(given[1]).ptr());
  const auto by_operators = [eagerly](const c10::Error* error, const Values& read, Values& values) {
    for (c10::IValue& result : call_python(eagerly->get(), error, read)) values.push_back(std::move(result));
  };
  PyObject* const program = pybind11::handle(given[0]).ptr();
  return {ProgramStep{program_of(program), std::make_shared<Held>(program), by_operators, std::move(inputs), std::move(updates)},
          std::move(last)};
}

GraphStep loop_step_of(const pybind11::tuple& given, std::vector<size_t> inputs, std::vector<size_t> last) {
  return {LoopStep{graph_of(pybind11::handle(given[1]).ptr()), given[2].cast<std::vector<size_t>>(),
                   given[3].cast<std::vector<bool>>(), given[4].cast<size_t>(), given[5].cast<bool>(), std::move(inputs)},
          std::move(last)};
}

Values values_of(pybind11::handle given) {
  Values values;
  for (const auto each : given) {
    if (!PyList_Check(each.ptr())) {
      values.push_back(value_of(each.ptr()));
      continue;
    }
    std::vector<at::Tensor> tensors;
    for (const auto tensor : each) tensors.push_back(THPVariable_Unpack(tensor.ptr()));
    values.emplace_back(std::move(tensors));
  }
  return values;
}

}  // namespace

GraphStep step_of(pybind11::handle given) {
  const auto step = given.cast<pybind11::tuple>();
  const auto what = step[0].cast<std::string>();
  auto last = step[3].cast<std::vector<size_t>>();
  if (what == "program") {
    return program_step_of(step[1].cast<pybind11::tuple>(), step[2].cast<std::vector<size_t>>(), std::move(last));
  }
  if (what == "concatenation") {
    auto [sizes, strides, dtype, device] =
        step[1].cast<std::tuple<std::vector<int64_t>, std::vector<int64_t>, at::ScalarType, at::Device>>();
    auto [dim, lengths] = step[2].cast<std::pair<int64_t, std::vector<int64_t>>>();
    return {ConcatenationStep{std::move(sizes), std::move(strides), dtype, dim, std::move(lengths), device}, std::move(last)};
  }
  if (what == "loop") {
    return loop_step_of(step[1].cast<pybind11::tuple>(), step[2].cast<std::vector<size_t>>(), std::move(last));
  }
  if (what == "graph") {
    const auto native = step[1].cast<pybind11::tuple>()[1];
    return {CallStep{graph_of(pybind11::handle(native).ptr()), step[2].cast<std::vector<size_t>>()}, std::move(last)};
  }
  if (what == "constant") return {ConstantStep{THPVariable_Unpack(step[1].ptr())}, std::move(last)};
  if (what == "number") {
    NumberStep made{step[1].cast<std::string>(), {}};
    for (const auto given : pybind11::handle(step[2]).cast<pybind11::list>()) {
      const auto operand = given.cast<pybind11::tuple>();
      const bool is_value = operand[0].cast<std::string>() == "value";
      made.operands.emplace_back(is_value ? operand[1].cast<int64_t>() : -1,
                                 is_value ? c10::IValue() : value_of(operand[1].ptr()));
    }
    return {std::move(made), std::move(last)};
  }
  if (what == "item") return {ItemStep{step[1].cast<size_t>(), step[2].cast<size_t>()}, std::move(last)};
  const auto [name, overload] = step[1].cast<std::pair<std::string, std::string>>();
  return {make_operator_step(name.c_str(), overload.c_str(), step[2].ptr()), std::move(last)};
}

PyObject* plan_loop(PyObject*, PyObject* arguments) {
  HANDLE_TH_ERRORS
  const auto given = pybind11::reinterpret_borrow<pybind11::tuple>(arguments);
  TORCH_CHECK_TYPE(given.size() == 4, "plan_loop: expected 4 arguments, but got ", std::to_string(given.size()));
  const GraphStep step = step_of(given[0]);
  const auto* const loop = std::get_if<LoopStep>(&step.call);
  TORCH_CHECK_TYPE(loop != nullptr, "plan_loop: expected a loop");
  const LoopPlan plan = loop->plan(values_of(given[1]), values_of(given[2]), given[3].cast<std::vector<size_t>>());
  return pybind11::make_tuple(plan.nest, plan.layout, plan.stages, plan.stage_texts).release().ptr();
  END_HANDLE_TH_ERRORS
}

}  // namespace fourfold::bindings
