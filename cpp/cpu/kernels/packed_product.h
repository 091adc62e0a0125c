// Products with a matrix that stays the same: it is packed once and multiplied often. float32 and float64.
#pragma once

#include "cpu/level.h"
#include "ops/kind.h"

namespace fourfold::cpu {

// How the matrix is cut into panels: of one vector for any number of rows, of eight for few. Few rows do nothing but wait for
// the matrix, which arrives fastest in one stream.
enum class Panels { of_a_vector, wide };

// out = start + a b, or start + a b + a2 b2 in one pass, which wide panels don't have. Steps count elements; of start and out, the
// elements of a row lie side by side.
struct PackedProduct {
  Kind kind;
  Panels panels;
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
  const void* a2 = nullptr;
  int64_t a2_row = 0;
  int64_t a2_column = 0;
  const void* packed2 = nullptr;  // b2, or null
  int64_t depth2 = 0;
};

// Of b (depth, columns), with one step 1.
using PackMatrixKernel = void(
    Kind kind, Panels panels, const void* b, int64_t row, int64_t column, int64_t depth, int64_t columns, void* packed);
using PackedBytesKernel = int64_t(Kind kind, int64_t depth, int64_t columns);
// The panels for products with so many rows.
using PanelsForRowsKernel = Panels(int64_t rows);
// How many panels so many columns have, which threads can share out.
using PanelsKernel = int64_t(Kind kind, Panels panels, int64_t columns);
using MultiplyPackedKernel = void(const PackedProduct& job, int64_t first_panel, int64_t last_panel);

FOURFOLD_CPU_KERNEL(pack_matrix, PackMatrixKernel)
FOURFOLD_CPU_KERNEL(packed_bytes, PackedBytesKernel)
FOURFOLD_CPU_KERNEL(panels_for_rows, PanelsForRowsKernel)
FOURFOLD_CPU_KERNEL(panels_of_columns, PanelsKernel)
FOURFOLD_CPU_KERNEL(multiply_packed, MultiplyPackedKernel)

}  // namespace fourfold::cpu
