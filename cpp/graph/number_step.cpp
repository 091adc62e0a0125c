#include "number_step.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string_view>

namespace fourfold::graph {
namespace {

struct Operation {
  std::string_view name;
  size_t operands;
  NumberResult result;
};

constexpr Operation known[] = {
    {"add", 2, NumberResult::as_operands}, {"sub", 2, NumberResult::as_operands}, {"mul", 2, NumberResult::as_operands},
    {"floordiv", 2, NumberResult::as_operands}, {"mod", 2, NumberResult::as_operands}, {"truediv", 2, NumberResult::floating},
    {"max", 2, NumberResult::as_operands}, {"min", 2, NumberResult::as_operands}, {"neg", 1, NumberResult::as_operands},
    {"float", 1, NumberResult::floating}, {"int", 1, NumberResult::integer},
    {"eq", 2, NumberResult::boolean}, {"ne", 2, NumberResult::boolean}, {"lt", 2, NumberResult::boolean},
    {"le", 2, NumberResult::boolean}, {"gt", 2, NumberResult::boolean}, {"ge", 2, NumberResult::boolean},
    {"and", 2, NumberResult::boolean}, {"or", 2, NumberResult::boolean}, {"not", 1, NumberResult::boolean}};

const Operation* find(std::string_view name) {
  const auto has_name = [name](const Operation& one) { return one.name == name; };
  const auto* const found = std::find_if(std::begin(known), std::end(known), has_name);
  return found == std::end(known) ? nullptr : found;
}

double as_double(const c10::IValue& value) {
  if (value.isBool()) return value.toBool();
  return value.isInt() ? static_cast<double>(value.toInt()) : value.toDouble();
}

int64_t as_integer(const c10::IValue& value) { return value.isBool() ? value.toBool() : value.toInt(); }

int64_t checked(std::optional<int64_t> result) {
  TORCH_CHECK_VALUE(result.has_value(), "compiled function: expected arithmetic of sizes to give integers of 64 bits");
  return *result;
}

int64_t truncated(double value) {
  constexpr double bound = 9223372036854775808.0;  // 2^63
  return checked(value >= -bound && value < bound ? std::optional(static_cast<int64_t>(value)) : std::nullopt);
}

int64_t of_integers(const std::string& operation, int64_t a, int64_t b) {
  int64_t result = 0;
  if (operation == "add") return checked(__builtin_add_overflow(a, b, &result) ? std::nullopt : std::optional(result));
  if (operation == "sub") return checked(__builtin_sub_overflow(a, b, &result) ? std::nullopt : std::optional(result));
  if (operation == "mul") return checked(__builtin_mul_overflow(a, b, &result) ? std::nullopt : std::optional(result));
  if (operation == "max") return std::max(a, b);
  if (operation == "min") return std::min(a, b);
  if (b == -1) return operation == "mod" ? 0 : of_integers("sub", 0, a);
  const int64_t quotient = a / b - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0);
  return operation == "mod" ? a - quotient * b : quotient;
}

double of_doubles(const std::string& operation, double a, double b) {
  if (operation == "add") return a + b;
  if (operation == "sub") return a - b;
  if (operation == "mul") return a * b;
  if (operation == "truediv") return a / b;
  if (operation == "max") return std::max(a, b);
  if (operation == "min") return std::min(a, b);
  return operation == "mod" ? a - std::floor(a / b) * b : std::floor(a / b);
}

template <typename T>
bool compared(const std::string& operation, T a, T b) {
  if (operation == "eq") return a == b;
  if (operation == "ne") return a != b;
  if (operation == "lt") return a < b;
  if (operation == "le") return a <= b;
  return operation == "gt" ? a > b : a >= b;
}

c10::IValue of_one(const std::string& operation, const c10::IValue& a) {
  const bool is_integer = a.isInt() || a.isBool();
  if (operation == "float") return as_double(a);
  if (operation == "int") return is_integer ? as_integer(a) : truncated(a.toDouble());
  if (operation == "not") return as_double(a) == 0;
  return is_integer ? c10::IValue(of_integers("sub", 0, as_integer(a))) : c10::IValue(-a.toDouble());
}

}  // namespace

size_t operands_of(const std::string& operation) {
  const Operation* const found = find(operation);
  return found == nullptr ? 0 : found->operands;
}

NumberResult result_of(const std::string& operation) { return find(operation)->result; }

void NumberStep::run(Values& values) const {
  const auto operand = [&](size_t k) { return operands[k].first < 0 ? operands[k].second : values[operands[k].first]; };
  const c10::IValue a = operand(0);
  if (operands.size() == 1) return static_cast<void>(values.push_back(of_one(operation, a)));
  const c10::IValue b = operand(1);
  const bool divides = operation == "truediv" || operation == "floordiv" || operation == "mod";
  TORCH_CHECK_VALUE(!divides || as_double(b) != 0, "compiled function: expected no division of a size by zero");
  const bool are_integers = !a.isDouble() && !b.isDouble() && operation != "truediv";
  const NumberResult result = result_of(operation);
  if (operation == "and" || operation == "or") {
    const bool x = as_double(a) != 0, y = as_double(b) != 0;
    values.emplace_back(operation == "and" ? x && y : x || y);
  } else if (result == NumberResult::boolean) {
    values.emplace_back(are_integers ? compared(operation, as_integer(a), as_integer(b))
                                     : compared(operation, as_double(a), as_double(b)));
  } else if (are_integers) {
    values.emplace_back(of_integers(operation, as_integer(a), as_integer(b)));
  } else {
    values.emplace_back(of_doubles(operation, as_double(a), as_double(b)));
  }
}

}  // namespace fourfold::graph
