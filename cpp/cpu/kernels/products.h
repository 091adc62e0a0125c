// The recurrent layers' products, which are the same for every cell: compiled once for all (products.cpp). How many rows
// and panels there are is known when they run, and their sums are left in memory.
#pragma once

#include "cpu/kernels/outer.h"

namespace fourfold::cpu::FOURFOLD_CPU_LEVEL {

// Where a product leaves the sums of its row r: at to + rows[r] * step, or at to + r * step where `rows` is null.
template <typename S>
struct RowSums {
  S* to;
  int64_t step;
  const int64_t* rows = nullptr;

  S* row(int64_t r) const { return to + (rows == nullptr ? r : rows[r]) * step; }
};

// Panels of `width` vectors, `size` factors from one to the next. The sums begin with the values at `start`, a panel's
// vectors, that are as far from one panel to the next; with zero where it is null.
template <typename E>
struct Panels {
  const E* data;
  int64_t size;
  int64_t depth;
  const Sum<E>* start = nullptr;
};

template <int width, typename E>
struct Packed {
  // At most most_rows<width> rows a times the first `count` panels, at most panels_at_once(rows, width): row r's sums are
  // count * width vectors.
  static void multiply(
      const E* const* a, int64_t rows, const Panels<E>& panels, int64_t count, const RowSums<Sum<E>>& sums);
};

// A block of hidden units' weights where torch keeps them: of each gate the rows of `units` units, and their biases.
template <typename E>
struct UnpackedBlock {
  const Memory<E>* weights;  // the first gate's
  int64_t leading_dim;
  int64_t gate_step;
  const Memory<E>* bias;  // the first gate's, or null
  int64_t bias_step;      // from one gate to the next
  int64_t units;
  int64_t depth;  // factors
};

inline constexpr int unpacked_rows = 4;  // the most that are multiplied at once

template <int gates, typename E>
struct Unpacked {
  using S = Sum<E>;
  static constexpr int64_t room = unpacked_rows * gates * lanes<S> * lanes<S>;  // values that a product needs beside

  // Few rows a times a block: row r's sums are a vector for each gate, begun with the biases.
  static void by_rows(
      const E* const* a, int64_t rows, const UnpackedBlock<E>& block, S* room, const RowSums<S>& sums);

  // The same of any number of rows, laid out as columns: these are the lanes, and factors from the weights single values.
  static void by_columns(
      const E* columns, int64_t rows, const UnpackedBlock<E>& block, S* room, const RowSums<S>& sums);
};

// Rows of so many values as Unpacked's columns, in pairs of vectors of rows; and how many factors these are.
template <typename E>
int64_t columns_size(int64_t rows, int64_t values) {
  return (rows + lanes<Sum<E>> - 1) / lanes<Sum<E>> * lanes<Sum<E>> * factors<E>(values);
}
template <typename E>
void lay_out_columns(const Memory<E>* x, int64_t rows, int64_t values, E* to);

// Which columns of a recurrent layer's weights: those of W_hh or of W_ih. gate_of(k): whose weights the k-th group of
// hidden_size rows are.
struct ColumnsOf {
  const void* weights;
  int64_t leading_dim;
  int64_t columns;
  int64_t hidden_size;
  int64_t gates;
  int (*gate_of)(int k);
};

// At most unpacked_rows rows of gate gradients, slot by slot, times the columns' vectors [begin, end): each row's sums are
// end - begin vectors, row after row.
template <typename E>
void multiply_columns_of(
    const ColumnsOf& of, const E* const* a, int64_t rows, int64_t begin, int64_t end, Sum<E>* sums);

// c (units, columns), of `count` rows, a piece (long_sums.h): `units` values of a, factor k at k * a_step, and the columns
// of b, packed (outer.h). Adds to c unless `begin`. To: Totals, or Rounded for a single piece.
template <typename E, typename To>
void add_outer(
    const E* a, int64_t a_step, int64_t units, const E* b, int64_t count, int64_t columns, const To& c, bool begin);

}  // namespace fourfold::cpu::FOURFOLD_CPU_LEVEL
