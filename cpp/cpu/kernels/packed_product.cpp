#include "cpu/kernels/packed_product.h"

#include "cpu/kernels/dense_product.h"

namespace fourfold::cpu::FOURFOLD_CPU_LEVEL {

namespace {

constexpr int wide = 8;  // vectors of a wide panel; the last one may have fewer

// Calls f(first vector, number of vectors) for the wide panels [first, last).
template <typename S, typename F>
void for_wide_panels(int64_t columns, int64_t first, int64_t last, const F& f) {
  for (int64_t panel = first; panel < last; ++panel) {
    const int64_t left = panels_of<S>(columns) - panel * wide;
    f(panel * wide, left < wide ? left : wide);
  }
}

template <typename S>
int64_t wide_panels_of(int64_t columns) {
  return (panels_of<S>(columns) + wide - 1) / wide;
}

template <typename S>
void pack_wide(const S* from, int64_t row, int64_t column, int64_t depth, int64_t columns, S* to) {
  for_wide_panels<S>(columns, 0, wide_panels_of<S>(columns), [&](int64_t vector, int64_t width) {
    for (int64_t j = 0; j < width; ++j) {
      const int64_t unit = (vector + j) * lanes<S>, count = lanes_left<S>(columns, unit);
      S* at = to + (vector * depth + j) * lanes<S>;
      if (column == 1) {
        pack_columns(from + unit, row, depth, count, at, width * lanes<S>);
      } else {
        pack_rows(from + unit * column, column, depth, count, at, width * lanes<S>);
      }
    }
  });
}

template <typename S>
void multiply_wide(const PackedProduct& job, int64_t first_panel, int64_t last_panel) {
  const auto* a = static_cast<const S*>(job.a);
  const auto* start = static_cast<const S*>(job.start);
  for_wide_panels<S>(job.columns, first_panel, last_panel, [&](int64_t vector, int64_t count) {
    const int64_t column = vector * lanes<S>;
    with_count<wide>(count, [&](auto width) {
      for_tiles<most_rows<wide>>(job.rows, [&](int64_t begin, auto height) {
        const S* row[height];
        for (int r = 0; r < height; ++r) row[r] = a + (begin + r) * job.a_row;
        const S* starts = start == nullptr ? nullptr : start + begin * job.start_row + column;
        S* to = static_cast<S*>(job.out) + begin * job.out_row + column;
        product_tile<height, width, true>(
            static_cast<const S* const*>(row), job.a_column, static_cast<const S*>(job.packed) + column * job.depth,
            job.depth, static_cast<const Addend<S>*>(nullptr), Rows<const S>{starts, job.start_row}, job.columns - column, Rows<S>{to, job.out_row}, true);
      });
    });
  });
}

}  // namespace

void pack_matrix(
    Kind kind, PanelWidth panels, const void* b, int64_t row, int64_t column, int64_t depth, int64_t columns,
    void* packed) {
  visit_compute(kind, [&](auto s) {
    using S = decltype(s);
    const auto* from = static_cast<const S*>(b);
    if (panels == PanelWidth::wide) {
      pack_wide(from, row, column, depth, columns, static_cast<S*>(packed));
    } else if (column == 1) {
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

PanelWidth panels_for_rows(int64_t rows) { return rows <= most_rows<wide> ? PanelWidth::wide : PanelWidth::one_vector; }

int64_t panels_of_columns(Kind kind, PanelWidth panels, int64_t columns) {
  int64_t count = 0;
  visit_compute(kind, [&](auto s) {
    count = panels == PanelWidth::wide ? wide_panels_of<decltype(s)>(columns) : panels_of<decltype(s)>(columns);
  });
  return count;
}

void multiply_packed(const PackedProduct& job, int64_t first_panel, int64_t last_panel) {
  visit_compute(job.kind, [&](auto s) {
    using S = decltype(s);
    if (job.panels == PanelWidth::wide) return multiply_wide<S>(job, first_panel, last_panel);
    const Addend<S> addend{
        Rows<const S>{static_cast<const S*>(job.a2), job.a2_row}, job.a2_column, static_cast<const S*>(job.packed2),
        job.depth2};
    product_of_panels(
        Rows<const S>{static_cast<const S*>(job.a), job.a_row}, job.a_column, job.rows,
        static_cast<const S*>(job.packed), job.depth, job.columns,
        Rows<const S>{static_cast<const S*>(job.start), job.start_row}, Rows<S>{static_cast<S*>(job.out), job.out_row},
        first_panel, last_panel, /*begin=*/true, job.packed2 == nullptr ? nullptr : &addend);
  });
}

}  // namespace fourfold::cpu::FOURFOLD_CPU_LEVEL
