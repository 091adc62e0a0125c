#include "operator_step.h"

#include <torch/csrc/jit/python/pybind_utils.h>

#include <string>

#include "wide_product.h"

namespace fourfold::bindings {
namespace {

// As lists hold them: what may be symbolic while torch traces is a number here.
c10::TypePtr element_of(const c10::TypePtr& type) {
  const auto* list = type->castRaw<c10::ListType>();
  if (list == nullptr) {
    const auto* optional = type->castRaw<c10::OptionalType>();
    TORCH_CHECK_TYPE(optional != nullptr, "expected an argument that takes a list, but got ", type->str());
    return element_of(optional->getElementType());
  }
  const c10::TypePtr element = list->getElementType();
  return element->kind() == c10::TypeKind::SymIntType ? c10::TypePtr(c10::IntType::get()) : element;
}

OperatorArgument argument_of(pybind11::handle given, const c10::Argument& argument, const c10::TypePtr& type) {
  const auto pair = given.cast<pybind11::tuple>();
  const auto what = pair[0].cast<std::string>();
  if (what == "value") return {pair[1].cast<int64_t>(), {}, nullptr, {}};
  if (what == "default") return {-1, argument.default_value().value(), nullptr, {}};
  if (what == "constant") return {-1, torch::jit::toIValue(pair[1], type, argument.N()), nullptr, {}};
  OperatorArgument made{-1, {}, element_of(type), {}};
  for (const auto part : pair[1].cast<pybind11::list>()) made.parts.push_back(argument_of(part, argument, made.element));
  return made;
}

void collect(const OperatorArgument& argument, std::vector<size_t>& found) {
  if (argument.index >= 0) found.push_back(static_cast<size_t>(argument.index));
  for (const OperatorArgument& part : argument.parts) collect(part, found);
}

}  // namespace

std::vector<size_t> read_by(const OperatorStep& step) {
  std::vector<size_t> found;
  for (const OperatorArgument& argument : step.arguments) collect(argument, found);
  return found;
}

c10::IValue OperatorArgument::value(const Values& values) const {
  if (index >= 0) return values[static_cast<size_t>(index)];
  if (element == nullptr) return constant;
  c10::impl::GenericList list(element);
  list.reserve(parts.size());
  for (const OperatorArgument& part : parts) list.push_back(part.value(values));
  return list;
}

void OperatorStep::run(Values& values) const {
  torch::jit::Stack stack;
  stack.reserve(arguments.size());
  for (const OperatorArgument& argument : arguments) stack.push_back(argument.value(values));
  if (!is_wide_product || !multiply_by_onednn(stack)) handle.callBoxed(stack);
  for (c10::IValue& result : stack) values.push_back(std::move(result));
}

OperatorStep make_operator_step(const char* name, const char* overload, PyObject* arguments) {
  OperatorStep step{c10::Dispatcher::singleton().findSchemaOrThrow(name, overload), {}};
  step.is_wide_product = is_wide_product(step.handle);
  const auto& expected = step.handle.schema().arguments();
  const torch::jit::ToIValueAllowNumbersAsTensors as_python_allows(true);
  const auto given = pybind11::handle(arguments).cast<pybind11::list>();
  TORCH_CHECK_VALUE(given.size() == expected.size(), "expected ", expected.size(), " arguments, but got ", given.size());
  for (size_t k = 0; k < expected.size(); ++k) {
    step.arguments.push_back(argument_of(given[k], expected[k], expected[k].real_type()));
  }
  return step;
}

}  // namespace fourfold::bindings
