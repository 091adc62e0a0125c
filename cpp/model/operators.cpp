#include "operators.h"

#include <ATen/ScalarOps.h>
#include <ATen/core/Formatting.h>
#include <c10/core/Layout.h>
#include <c10/core/MemoryFormat.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>
#include <utility>

#include "guards.h"
#include "permitted.h"
#include "tensor_file.h"

namespace fourfold::model {
namespace {

using c10::IValue;
using c10::TypeKind;

std::string listed(const std::set<std::string>& words) {
  std::string found;
  for (const std::string& word : words) found += (found.empty() ? "" : ", ") + word;
  return found;
}

// The schema argument that is being parsed.
struct Expected {
  const c10::OperatorHandle& handle;
  const c10::Argument& argument;

  [[noreturn]] void refuse(const std::string& what) const {
    throw Refused("expected argument " + argument.name() + " of " + c10::toString(handle.operator_name()) + " to be " +
                  argument.real_type()->str() + ", but got " + what);
  }
};

bool is_list_of(const c10::TypePtr& type, TypeKind kind) {
  return type->kind() == TypeKind::ListType && type->castRaw<c10::ListType>()->getElementType()->kind() == kind;
}

bool takes(const c10::TypePtr& type, ValueKind kind) {
  const bool is_number = kind == ValueKind::number;
  switch (type->kind()) {
    case TypeKind::OptionalType: return takes(type->castRaw<c10::OptionalType>()->getElementType(), kind);
    case TypeKind::TensorType: return kind == ValueKind::tensor;
    case TypeKind::ListType: return kind == ValueKind::tensors && is_list_of(type, TypeKind::TensorType);
    case TypeKind::IntType:
    case TypeKind::SymIntType: return kind == ValueKind::integer || is_number;
    case TypeKind::FloatType:
    case TypeKind::SymFloatType: return kind == ValueKind::floating || is_number;
    case TypeKind::BoolType:
    case TypeKind::SymBoolType: return kind == ValueKind::boolean;
    case TypeKind::NumberType:
      return is_number || kind == ValueKind::integer || kind == ValueKind::floating || kind == ValueKind::boolean;
    default: return false;
  }
}

IValue number_named(const std::string& name) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  if (name == "inf") return infinity;
  if (name == "-inf") return -infinity;
  if (name == "nan") return std::numeric_limits<double>::quiet_NaN();
  throw Refused("expected a float to be inf, -inf or nan, but got " + shown(name));
}

IValue layout_named(const std::string& name) {
  if (name == "strided") return static_cast<int64_t>(c10::Layout::Strided);
  throw Refused("expected the layout strided, but got " + shown(name));
}

IValue memory_format_named(const std::string& name) {
  constexpr std::pair<const char*, c10::MemoryFormat> known[] = {
      {"contiguous_format", c10::MemoryFormat::Contiguous}, {"preserve_format", c10::MemoryFormat::Preserve},
      {"channels_last", c10::MemoryFormat::ChannelsLast}, {"channels_last_3d", c10::MemoryFormat::ChannelsLast3d}};
  for (const auto& [known_name, format] : known) {
    if (name == known_name) return static_cast<int64_t>(format);
  }
  throw Refused("expected a memory format that torch has, but got " + shown(name));
}

// A constant that isn't a JSON value, such as {"dtype": "float32"}. Empty if it is none.
std::optional<IValue> special(const c10::TypePtr& type, const Json& given, const Surroundings& surroundings) {
  const auto& members = given.as_object("an argument");
  if (members.size() != 1) return std::nullopt;
  const auto& [what, value] = members[0];
  const auto takes_a = [&type](TypeKind kind) { return type->kind() == kind; };
  if (what == "dtype" && takes_a(TypeKind::ScalarTypeType)) return static_cast<int64_t>(dtype_of(value.as_string("a dtype")));
  if (what == "layout" && takes_a(TypeKind::LayoutType)) return layout_named(value.as_string("a layout"));
  if (what == "memory_format" && takes_a(TypeKind::MemoryFormatType)) {
    return memory_format_named(value.as_string("a memory format"));
  }
  if (what == "float" && (takes_a(TypeKind::FloatType) || takes_a(TypeKind::NumberType))) {
    return number_named(value.as_string("a float"));
  }
  // A model uses only the device that it is loaded to.
  if (what == "device" && takes_a(TypeKind::DeviceObjType)) return value.as_string("a device"), IValue(surroundings.device);
  return std::nullopt;
}

std::optional<IValue> constant(const c10::TypePtr& type, const Json& given, const Surroundings& surroundings) {
  if (type->kind() == TypeKind::TensorType) {  // a number passed as a tensor, as Python allows
    const std::optional<IValue> number = constant(c10::NumberType::get(), given, surroundings);
    return number.has_value() ? std::optional<IValue>(at::native::wrapped_scalar_tensor(number->toScalar())) : std::nullopt;
  }
  switch (given.kind()) {
    case Json::Kind::boolean:
      if (type->kind() == TypeKind::BoolType || type->kind() == TypeKind::SymBoolType || type->kind() == TypeKind::NumberType) {
        return given.as_bool("");
      }
      return std::nullopt;
    case Json::Kind::integer:
      if (type->kind() == TypeKind::IntType || type->kind() == TypeKind::SymIntType || type->kind() == TypeKind::NumberType) {
        return given.as_integer("");
      }
      if (type->kind() == TypeKind::FloatType) return given.as_number("");
      return std::nullopt;
    case Json::Kind::number:
      if (type->kind() == TypeKind::FloatType || type->kind() == TypeKind::NumberType) return given.as_number("");
      return std::nullopt;
    case Json::Kind::string:
      if (type->kind() == TypeKind::StringType) return given.as_string("");
      return std::nullopt;
    case Json::Kind::object: return special(type, given, surroundings);
    default: return std::nullopt;
  }
}

// The element type that lists hold at run time: symbolic types and enumerations become int.
c10::TypePtr held(const c10::TypePtr& type) {
  switch (type->kind()) {
    case TypeKind::SymIntType: return c10::IntType::get();
    case TypeKind::ScalarTypeType:
    case TypeKind::LayoutType:
    case TypeKind::MemoryFormatType: return c10::IntType::get();
    default: return type;
  }
}

OperatorArgument argument_of(
    const Json& given, const c10::TypePtr& type, const Expected& expected, const std::vector<ValueKind>& known,
    const Surroundings& surroundings) {
  if (const Json* value = given.find("value")) {
    const size_t index = value->as_index("a value", known.size());
    const bool wraps = type->kind() == TypeKind::TensorType && takes(c10::NumberType::get(), known[index]);
    if (!wraps && !takes(type, known[index])) expected.refuse(name_of(known[index]));
    return {static_cast<int64_t>(index), {}, nullptr, {}, wraps};
  }
  if (const auto* optional = type->castRaw<c10::OptionalType>()) {
    if (given.is(Json::Kind::null)) return {-1, {}, nullptr, {}};
    return argument_of(given, optional->getElementType(), expected, known, surroundings);
  }
  if (const auto* list = type->castRaw<c10::ListType>()) {
    OperatorArgument made{-1, {}, held(list->getElementType()), {}};
    if (given.is(Json::Kind::list)) {
      for (const Json& part : given.as_list("")) {
        made.parts.push_back(argument_of(part, list->getElementType(), expected, known, surroundings));
      }
    } else if (expected.argument.N().has_value()) {  // one value for all elements, as schemas such as int[2] allow
      const OperatorArgument part = argument_of(given, list->getElementType(), expected, known, surroundings);
      made.parts.assign(static_cast<size_t>(*expected.argument.N()), part);
    } else {
      expected.refuse("another constant");
    }
    const bool has_values = std::any_of(made.parts.begin(), made.parts.end(), [](const OperatorArgument& part) {
      return part.index >= 0 || part.element != nullptr;
    });
    if (has_values) return made;
    return {-1, made.value({}), nullptr, {}};
  }
  const std::optional<IValue> found = constant(type, given, surroundings);
  if (!found.has_value()) expected.refuse("another constant");
  return {-1, *found, nullptr, {}};
}

bool reads_tensors(const OperatorStep& step) {
  const auto& arguments = step.handle.schema().arguments();
  return std::any_of(arguments.begin(), arguments.end(), [](const c10::Argument& one) {
    return one.type()->kind() == TypeKind::TensorType || is_list_of(one.type(), TypeKind::TensorType);
  });
}

}  // namespace

const char* name_of(ValueKind kind) {
  constexpr const char* names[] = {"a tensor", "a list of tensors", "an integer", "a float", "a boolean", "a number",
                                   "another value"};
  return names[static_cast<size_t>(kind)];
}

c10::OperatorHandle operator_of(const std::string& name, const Surroundings& surroundings) {
  const size_t colons = name.find("::"), dot = name.find('.', colons == std::string::npos ? 0 : colons);
  const std::string space = colons == std::string::npos ? "" : name.substr(0, colons);
  if (surroundings.namespaces.count(space) == 0) {
    throw Refused("expected operators of " + listed(surroundings.namespaces) + ", but the file calls " + shown(name) +
                  "; if you trust the file, allow its namespace: allow=('" + space + "',)");
  }
  const std::string overload = dot == std::string::npos ? "" : name.substr(dot + 1);
  const auto found = c10::Dispatcher::singleton().findSchema({name.substr(0, dot), overload});
  if (!found.has_value()) {
    throw Refused("expected an operator that this torch has, but the file calls " + shown(name) +
                  "; use the torch that it was saved with, or a newer one, and import what registers the operator");
  }
  const bool is_torchs = space == "aten" || space == "prims" || space == "fourfold";
  const std::string_view own = std::string_view(name).substr(colons + 2), without_overload = own.substr(0, own.find('.'));
  if (is_torchs && found->schema().is_mutable() && !(space == "aten" && may_write(without_overload))) {
    throw Refused("expected no operator that changes its arguments, but the file calls " + shown(name));
  }
  if ((space == "aten" || space == "prims") && !is_permitted(without_overload)) {
    throw Refused("the file calls " + shown(name) + ", which fourfold doesn't run for a file: it may read or write outside the "
                  "model's tensors");
  }
  return *found;
}

OperatorStep operator_step_of(
    const c10::OperatorHandle& handle, const Json& arguments, const std::vector<ValueKind>& known,
    const Surroundings& surroundings) {
  OperatorStep step{handle, {}};
  step.substitute = substitute_of(handle);
  step.lay_out = lay_out_of(handle);
  step.guard = guard_of(handle);
  const bool makes = !reads_tensors(step);
  size_t read = 0;
  for (const c10::Argument& argument : handle.schema().arguments()) {
    const Expected expected{handle, argument};
    const Json* const given = arguments.find(argument.name());
    const bool is_device = argument.name() == "device" && argument.type()->str() == "Device?";
    if (given != nullptr) {
      ++read;
    } else if (!argument.default_value().has_value()) {
      expected.refuse("none");
    }
    if (is_device && makes && (given == nullptr || given->is(Json::Kind::null))) {
      step.arguments.push_back({-1, surroundings.device, nullptr, {}});
    } else if (given == nullptr) {
      step.arguments.push_back({-1, *argument.default_value(), nullptr, {}});
    } else {
      step.arguments.push_back(argument_of(*given, argument.real_type(), expected, known, surroundings));
    }
  }
  if (read != arguments.as_object("arguments").size()) {
    throw Refused("the file gives " + c10::toString(handle.operator_name()) +
                  " an argument that this torch's has not; use the torch that it was saved with, or a newer one");
  }
  return step;
}

std::vector<ValueKind> results_of(const c10::OperatorHandle& handle) {
  std::vector<ValueKind> found;
  for (const c10::Argument& result : handle.schema().returns()) {
    switch (result.type()->kind()) {
      case TypeKind::TensorType: found.push_back(ValueKind::tensor); break;
      case TypeKind::IntType:
      case TypeKind::SymIntType: found.push_back(ValueKind::integer); break;
      case TypeKind::FloatType:
      case TypeKind::SymFloatType: found.push_back(ValueKind::floating); break;
      case TypeKind::BoolType:
      case TypeKind::SymBoolType: found.push_back(ValueKind::boolean); break;
      case TypeKind::NumberType: found.push_back(ValueKind::number); break;
      default:
        found.push_back(is_list_of(result.type(), TypeKind::TensorType) ? ValueKind::tensors : ValueKind::other);
    }
  }
  return found;
}

}  // namespace fourfold::model
