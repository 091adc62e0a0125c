#pragma once

#include <memory>

#include "program/backend.h"

namespace fourfold::cpu {

// A product with one or two matrices. Null for matrices that can't be packed: neither rows nor columns are contiguous,
// or another dtype.
std::unique_ptr<const program::Product> product_with(const program::Tensor* b, int count, int64_t rows);

}  // namespace fourfold::cpu
