// One of torch's operators as a step of a compiled graph: called through the dispatcher, without Python.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <vector>

#include "guards.h"
#include "values.h"

namespace fourfold::model {

// A constant, one of the graph's values, or a list of such.
struct OperatorArgument {
  int64_t index = -1;  // of the value
  c10::IValue constant;
  c10::TypePtr element;  // of a list that is made of values
  std::vector<OperatorArgument> parts;
  bool wraps = false;  // a number among tensors, as Python allows

  c10::IValue value(const Values& values) const;
};

struct OperatorStep {
  c10::OperatorHandle handle;
  std::vector<OperatorArgument> arguments;  // all that the operator has
  bool is_wide_product = false;
  Guard guard = nullptr;  // of a file's

  // Appends the results. Throws c10::Error where the operator rejects its arguments.
  void run(Values& values) const;
};

// The values that it reads.
std::vector<size_t> read_by(const OperatorStep& step);

// Of a list's type, as lists hold them: what may be symbolic while torch traces is a number here.
c10::TypePtr element_of(const c10::TypePtr& type);

}  // namespace fourfold::model
