// Arithmetic of sizes as a step of a compiled graph, with Python's semantics.
#pragma once

#include <ATen/core/ivalue.h>

#include <string>
#include <utility>
#include <vector>

#include "values.h"

namespace fourfold::graph {

struct NumberStep {
  // A value's index, or -1 and a number.
  using Operand = std::pair<int64_t, c10::IValue>;

  std::string operation;
  std::vector<Operand> operands;

  // Appends the result. Throws c10::ValueError for division by zero and for integer overflow (64 bits).
  void run(Values& values) const;
};

// The number of operands; 0 for an unknown operation.
size_t operands_of(const std::string& operation);

enum class NumberResult : uint8_t { integer, floating, boolean, as_operands };
NumberResult result_of(const std::string& operation);

}  // namespace fourfold::graph
