#include "operator_step.h"

#include <ATen/ScalarOps.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <c10/util/Exception.h>

#include <string>

namespace fourfold::graph {
namespace {

void collect(const OperatorArgument& argument, std::vector<size_t>& found) {
  if (argument.index >= 0) found.push_back(static_cast<size_t>(argument.index));
  for (const OperatorArgument& part : argument.parts) collect(part, found);
}

}  // namespace

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

std::vector<size_t> read_by(const OperatorStep& step) {
  std::vector<size_t> found;
  for (const OperatorArgument& argument : step.arguments) collect(argument, found);
  return found;
}

bool has_sizes_of_data(const OperatorStep& step, const Values& values) {
  if (step.handle.hasTag(at::Tag::data_dependent_output)) return true;
  if (!step.handle.hasTag(at::Tag::dynamic_output_shape)) return false;
  const c10::OperatorName& name = step.handle.operator_name();
  if (name.name != "aten::index" || name.overload_name != "Tensor") return true;
  for (const OperatorArgument& part : step.arguments[1].parts) {
    const c10::IValue index = part.value(values);
    const bool is_list_of_numbers = index.isNone() || (index.isTensor() && index.toTensor().defined() &&
                                                       (index.toTensor().scalar_type() == at::kLong || index.toTensor().scalar_type() == at::kInt));
    if (!is_list_of_numbers) return true;
  }
  return step.arguments[1].parts.empty();
}

std::string name_of(const OperatorStep& step) {
  const std::string& name = step.handle.operator_name().name;
  return name.rfind("aten::", 0) == 0 ? name.substr(6) : name;
}

c10::IValue OperatorArgument::value(const Values& values) const {
  if (index >= 0 && wraps) return at::native::wrapped_scalar_tensor(values[static_cast<size_t>(index)].toScalar());
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
  if (guard != nullptr) guard(handle.schema(), stack);
  // A mode of Python's sees all operators, and its tensors may have no memory.
  const bool is_seen = c10::impl::dispatch_mode_enabled();
  if (substitute == nullptr || is_seen || !substitute(stack, own.get(), nullptr)) {
    if (lay_out != nullptr && !is_seen) lay_out(stack, own.get());
    handle.callBoxed(stack);
  }
  for (c10::IValue& result : stack) values.push_back(std::move(result));
}

}  // namespace fourfold::graph
