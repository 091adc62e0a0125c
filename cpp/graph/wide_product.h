// mm and addmm by oneDNN on CPUs whose widest vectors MKL doesn't use: there torch's default, MKL, takes twice as long.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace fourfold::graph {

// Whether to try multiply_by_onednn().
bool has_onednn_products();

// Replaces the arguments of mm or addmm by the result. Returns false and does nothing for small products, for tensors
// that oneDNN would have to copy, and for tensors that aren't plain float32.
bool multiply_by_onednn(torch::jit::Stack& stack);

}  // namespace fourfold::graph
