// What a model file's operators are checked for before each call, where torch's kernels read outside a tensor otherwise.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace fourfold::model {

// Throws c10::Error for arguments that the operator's kernel would trust. stack: all arguments of the schema.
using Guard = void (*)(const c10::FunctionSchema& schema, const torch::jit::Stack& stack);

// Null if torch checks everything.
Guard guard_of(const c10::OperatorHandle& handle);

}  // namespace fourfold::model
