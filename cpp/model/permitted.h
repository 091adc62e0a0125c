// Which of torch's own operators a model file may call.
#pragma once

#include <string_view>

namespace fourfold::model {

// name: without namespace and overload. Refused are those that read files, or memory that nothing has written or that may lie
// outside a tensor's; that trust indices, sizes or packed weights which they are given; that change the process; and gradients.
bool is_permitted(std::string_view name);

}  // namespace fourfold::model
