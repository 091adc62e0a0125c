#pragma once

#include <memory>

#include "program/backend.h"

namespace fourfold::cpu {

// Of one matrix or two. Null for one that is not packed: neither its rows' nor its columns' elements lie side by side, or another dtype.
std::unique_ptr<const program::Product> product_with(const program::Tensor* b, int count, int64_t rows);

}  // namespace fourfold::cpu
