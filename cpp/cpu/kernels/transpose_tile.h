// Transposes a matrix, one tile at a time.
#pragma once

#include <cstdint>

#include "cpu/level.h"

namespace fourfold::cpu {

// to[r * to_step + c] = from[c * from_step + r], for elements of `size` bytes.
using TransposeTile = void(
    int64_t size, const void* from, int64_t from_step, void* to, int64_t to_step, int64_t rows, int64_t columns);

FOURFOLD_CPU_KERNEL(transpose_tile, TransposeTile)

}  // namespace fourfold::cpu
