// Products with a constant matrix, which is packed once and used often. float32 and float64.
#pragma once

#include "cpu/level.h"
#include "ops/kind.h"

namespace fourfold::cpu {

// The width of the matrix's panels: one vector for any number of rows, eight for few rows. Few rows are bound by
// reading the matrix, which is fastest as one stream.
enum class PanelWidth { one_vector, wide };

// out = start + a b, or start + a b + a2 b2 in one pass (not with wide panels). Strides count elements. Rows of start
// and out are contiguous.
struct PackedProduct {
  Kind kind;
  PanelWidth panels;
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

// Packs b (depth, columns); one of its strides is 1.
using PackMatrixKernel = void(
    Kind kind, PanelWidth panels, const void* b, int64_t row, int64_t column, int64_t depth, int64_t columns,
    void* packed);
using PackedBytesKernel = int64_t(Kind kind, int64_t depth, int64_t columns);
// The width of the panels for products of `rows` rows.
using PanelsForRowsKernel = PanelWidth(int64_t rows);
// The number of panels, which threads can share.
using PanelsKernel = int64_t(Kind kind, PanelWidth panels, int64_t columns);
using MultiplyPackedKernel = void(const PackedProduct& job, int64_t first_panel, int64_t last_panel);

FOURFOLD_CPU_KERNEL(pack_matrix, PackMatrixKernel)
FOURFOLD_CPU_KERNEL(packed_bytes, PackedBytesKernel)
FOURFOLD_CPU_KERNEL(panels_for_rows, PanelsForRowsKernel)
FOURFOLD_CPU_KERNEL(panels_of_columns, PanelsKernel)
FOURFOLD_CPU_KERNEL(multiply_packed, MultiplyPackedKernel)

}  // namespace fourfold::cpu
