// Arithmetic of sizes as a step of a compiled graph, as Python computes it.
#pragma once

#include <ATen/core/ivalue.h>

#include <string>
#include <utility>
#include <vector>

#include "values.h"

namespace fourfold::model {

struct NumberStep {
  // A value's index, or -1 and a number.
  using Operand = std::pair<int64_t, c10::IValue>;

  std::string operation;  // add, sub, mul, floordiv, truediv, or float, which has one operand
  std::vector<Operand> operands;

  // Appends the result.
  void run(Values& values) const;
};

}  // namespace fourfold::model
