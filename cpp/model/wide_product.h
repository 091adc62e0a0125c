// mm and addmm by oneDNN on processors whose widest vectors MKL leaves alone: there torch's own call takes twice as long.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace fourfold::model {

// Whether to try multiply_by_onednn() with the operator's arguments.
bool is_wide_product(const c10::OperatorHandle& operation);

// Replaces the arguments of mm or addmm by the result. False, and nothing is done, for small products, and for tensors that
// oneDNN has to copy or that aren't plain float32 ones.
bool multiply_by_onednn(torch::jit::Stack& stack);

}  // namespace fourfold::model
