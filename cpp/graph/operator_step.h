// A torch operator as a step of a compiled graph, called through the dispatcher without Python.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "packed_weights.h"
#include "values.h"

namespace fourfold::graph {

// A constant, one of the graph's values, or a list of them.
struct OperatorArgument {
  int64_t index = -1;  // of the value
  c10::IValue constant;
  c10::TypePtr element;  // the element type of a list of values
  std::vector<OperatorArgument> parts;
  bool wraps = false;  // a number passed as a tensor, as Python allows

  c10::IValue value(const Values& values) const;
};

// Throws c10::Error for invalid arguments that the operator's kernel doesn't check. stack: all arguments of the schema.
using Guard = void (*)(const c10::FunctionSchema& schema, const torch::jit::Stack& stack);

// Replaces the arguments by the results, computed in another way. Returns false and does nothing where torch's kernel
// is better or may reject the arguments. own: of a product with a matrix that may be packed, or null. into: memory for
// the result, of its layout, or null.
using Substitute = bool (*)(torch::jit::Stack& stack, PackedWeights* own, const at::Tensor* into);

// Null if there is none.
Substitute substitute_of(const c10::OperatorHandle& operation);

// Copies arguments in the layout that the operator needs, where that is faster than the operator's own copy. own: of a layer
// whose weights may be packed, or null.
using LayOut = void (*)(torch::jit::Stack& stack, PackedWeights* own);

// Null if there is none.
LayOut lay_out_of(const c10::OperatorHandle& operation);

struct OperatorStep {
  c10::OperatorHandle handle;
  std::vector<OperatorArgument> arguments;  // all of the schema's arguments
  Substitute substitute = nullptr;
  LayOut lay_out = nullptr;
  std::shared_ptr<PackedWeights> own;  // if what it may pack is the model's own
  Guard guard = nullptr;  // only for operators from a file

  // Appends the results. Throws c10::Error if the operator rejects its arguments.
  void run(Values& values) const;
};

// The values that a step may pack: a product's matrix, a recurrent layer's weights and biases.
std::vector<size_t> weights_of(const OperatorStep& step);

// The indices of the values that it reads.
std::vector<size_t> read_by(const OperatorStep& step);

// Whether its results' sizes follow from the elements of its arguments. values: those that it reads. By its tag this goes
// for `index`, which masks alone do.
bool has_sizes_of_data(const OperatorStep& step, const Values& values);

// The operator's name without aten's namespace.
std::string name_of(const OperatorStep& step);

// The element type of a list type; SymInt becomes int, because values aren't symbolic here.
c10::TypePtr element_of(const c10::TypePtr& type);

}  // namespace fourfold::graph
