#include "cpu/kernels/packed_product.h"

#include "cpu/kernels/dense_product.h"

namespace fourfold::cpu::FOURFOLD_CPU_LEVEL {

void pack_matrix(Kind kind, const void* b, int64_t row, int64_t column, int64_t depth, int64_t columns, void* packed) {
  visit_compute(kind, [&](auto s) {
    using S = decltype(s);
    const auto* from = static_cast<const S*>(b);
    if (column == 1) {
      pack(Rows<const S>{from, row}, depth, columns, static_cast<S*>(packed));
    } else {
      pack_transposed(Rows<const S>{from, column}, depth, columns, static_cast<S*>(packed));
    }
  });
}

int64_t packed_bytes(Kind kind, int64_t depth, int64_t columns) {
  int64_t bytes = 0;
  visit_compute(kind, [&](auto s) { bytes = packed_size<decltype(s)>(depth, columns) * static_cast<int64_t>(sizeof s); });
  return bytes;
}

int64_t panels_of_columns(Kind kind, int64_t columns) {
  int64_t panels = 0;
  visit_compute(kind, [&](auto s) { panels = panels_of<decltype(s)>(columns); });
  return panels;
}

void multiply_packed(const PackedProduct& job, int64_t first_panel, int64_t last_panel) {
  visit_compute(job.kind, [&](auto s) {
    using S = decltype(s);
    product_of_panels(
        Rows<const S>{static_cast<const S*>(job.a), job.a_row}, job.a_column, job.rows,
        static_cast<const S*>(job.packed), job.depth, job.columns,
        Rows<const S>{static_cast<const S*>(job.start), job.start_row}, Rows<S>{static_cast<S*>(job.out), job.out_row},
        first_panel, last_panel);
  });
}

}  // namespace fourfold::cpu::FOURFOLD_CPU_LEVEL
