// Products of few rows with a constant matrix of bfloat16 or float16, which is packed once. Sums are in float32.
#pragma once

#include "cpu/level.h"
#include "ops/kind.h"

namespace fourfold::cpu {

// out = start + a b, all of one kind. Strides count elements. Rows of start and out are contiguous.
struct HalfProduct {
  Kind kind;
  int64_t rows;
  int64_t depth;
  int64_t columns;
  const void* a;
  int64_t a_row;
  int64_t a_column;
  const void* packed;  // b
  const void* start;   // or null for zero
  int64_t start_row;
  void* out;
  int64_t out_row;
};

// The columns of a panel, which threads can share; 0 on levels whose conversions aren't vectors'.
using HalfPanelKernel = int64_t();
// Packs b (depth, columns) into panels, the last one filled with zeros.
using PackHalfKernel = void(const void* b, int64_t row, int64_t column, int64_t depth, int64_t columns, void* packed);
using MultiplyHalfKernel = void(const HalfProduct& job, int64_t first_panel, int64_t last_panel);

FOURFOLD_CPU_KERNEL(columns_of_half_panel, HalfPanelKernel)
FOURFOLD_CPU_KERNEL(pack_half, PackHalfKernel)
FOURFOLD_CPU_KERNEL(multiply_half, MultiplyHalfKernel)

}  // namespace fourfold::cpu
