// Checks before each call of an operator from a model file, for operators whose torch kernels would read out of bounds.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace fourfold::model {

// Throws c10::Error for invalid arguments that the operator's kernel doesn't check. stack: all arguments of the schema.
using Guard = void (*)(const c10::FunctionSchema& schema, const torch::jit::Stack& stack);

// Null if torch checks everything.
Guard guard_of(const c10::OperatorHandle& handle);

}  // namespace fourfold::model
