// The torch operators that a model file may call.
#pragma once

#include <string_view>

namespace fourfold::model {

// name: without namespace and overload. Rejected are operators that read files, uninitialised memory or memory outside
// a tensor, that don't check indices, sizes or packed weights, that modify global state, and gradients.
bool is_permitted(std::string_view name);

// Whether a file's operator may change its first argument in place: those that write some of its elements, check where,
// and change nothing else.
bool may_write(std::string_view name);

}  // namespace fourfold::model
