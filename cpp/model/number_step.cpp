#include "number_step.h"

#include <c10/util/Exception.h>

#include <cmath>

namespace fourfold::model {
namespace {

double as_double(const c10::IValue& value) { return value.isInt() ? static_cast<double>(value.toInt()) : value.toDouble(); }

int64_t floor_divide(int64_t a, int64_t b) { return a / b - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0); }

c10::IValue of_integers(const std::string& operation, int64_t a, int64_t b) {
  if (operation == "add") return a + b;
  if (operation == "sub") return a - b;
  if (operation == "mul") return a * b;
  return floor_divide(a, b);
}

c10::IValue of_doubles(const std::string& operation, double a, double b) {
  if (operation == "add") return a + b;
  if (operation == "sub") return a - b;
  if (operation == "mul") return a * b;
  return operation == "truediv" ? a / b : std::floor(a / b);
}

}  // namespace

void NumberStep::run(Values& values) const {
  const auto operand = [&](size_t k) { return operands[k].first < 0 ? operands[k].second : values[operands[k].first]; };
  const c10::IValue a = operand(0);
  if (operation == "float") return static_cast<void>(values.emplace_back(as_double(a)));
  const c10::IValue b = operand(1);
  const bool divides = operation == "truediv" || operation == "floordiv";
  TORCH_CHECK_VALUE(!divides || as_double(b) != 0, "compiled function: expected no division of a size by zero");
  const bool are_integers = a.isInt() && b.isInt() && operation != "truediv";
  values.push_back(are_integers ? of_integers(operation, a.toInt(), b.toInt())
                                : of_doubles(operation, as_double(a), as_double(b)));
}

}  // namespace fourfold::model
