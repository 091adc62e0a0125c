// Products of few rows with a constant matrix of bfloat16 or float16, which is packed once. Sums are in float32.
#pragma once

#include "cpu/kernels/packed_product.h"

namespace fourfold::cpu {

// The columns of a panel, which threads can share; 0 on levels whose conversions aren't vectors'.
using HalfPanelKernel = int64_t();
// Packs b (depth, columns) into panels, the last one filled with zeros.
using PackHalfKernel = void(const void* b, int64_t row, int64_t column, int64_t depth, int64_t columns, void* packed);
// out = start + a b, all of one kind of 16 bits.
using MultiplyHalfKernel = void(const PackedProduct& job, int64_t first_panel, int64_t last_panel);

FOURFOLD_CPU_KERNEL(columns_of_half_panel, HalfPanelKernel)
FOURFOLD_CPU_KERNEL(pack_half, PackHalfKernel)
FOURFOLD_CPU_KERNEL(multiply_half, MultiplyHalfKernel)

}  // namespace fourfold::cpu
