// The products of recurrent layers, compiled once for all cells (products.cpp). The numbers of rows and panels are
// run-time values, and the sums are written to memory.
#pragma once

#include "cpu/kernels/outer.h"

namespace fourfold::cpu::FOURFOLD_CPU_LEVEL {

// Where a product writes the sums of row r: at to + rows[r] * step, or at to + r * step if `rows` is null.
template <typename S>
struct RowSums {
  S* to;
  int64_t step;
  const int64_t* rows = nullptr;

  S* row(int64_t r) const { return to + (rows == nullptr ? r : rows[r]) * step; }
};

// Panels of `width` vectors, at a distance of `size` factors. The sums start with the vectors at `start`, which have
// the same distance between panels; or with zero if it is null.
template <typename E>
struct Panels {
  const E* data;
  int64_t size;
  int64_t depth;
  const Sum<E>* start = nullptr;
};

template <int width, typename E>
struct Packed {
  // Multiplies at most most_rows<width> rows a with the first `count` panels, at most panels_at_once(rows, width). Each
  // row has count * width vectors of sums.
  static void multiply(
      const E* const* a, int64_t rows, const Panels<E>& panels, int64_t count, const RowSums<Sum<E>>& sums);
};

// The unpacked weights of a block of hidden units: for each gate the rows of `units` units, and their biases.
template <typename E>
struct UnpackedBlock {
  const Memory<E>* weights;  // of the first gate
  int64_t leading_dim;
  int64_t gate_step;
  const Memory<E>* bias;  // of the first gate, or null
  int64_t bias_step;      // from one gate to the next
  int64_t units;
  int64_t depth;  // factors
};

inline constexpr int unpacked_rows = 4;  // the maximum number of rows multiplied at once

template <int gates, typename E>
struct Unpacked {
  using S = Sum<E>;
  static constexpr int64_t room = unpacked_rows * gates * lanes<S> * lanes<S>;  // values of scratch memory

  // Multiplies few rows a with a block. Each row has a vector of sums for each gate, which include the biases.
  static void by_rows(
      const E* const* a, int64_t rows, const UnpackedBlock<E>& block, S* room, const RowSums<S>& sums);

  // The same for any number of rows, packed as columns by lay_out_columns(): rows are the lanes, weights are broadcast.
  static void by_columns(
      const E* columns, int64_t rows, const UnpackedBlock<E>& block, S* room, const RowSums<S>& sums);
};

// Packs rows as columns for Unpacked, in pairs of vectors of rows; columns_size: the number of factors.
template <typename E>
int64_t columns_size(int64_t rows, int64_t values) {
  return (rows + lanes<Sum<E>> - 1) / lanes<Sum<E>> * lanes<Sum<E>> * factors<E>(values);
}
template <typename E>
void lay_out_columns(const Memory<E>* x, int64_t rows, int64_t values, E* to);

// The columns of a recurrent layer's W_hh or W_ih. gate_of(k): the gate of the k-th slot of gradients.
struct ColumnsOf {
  const void* weights;
  int64_t leading_dim;
  int64_t columns;
  int64_t hidden_size;
  int64_t gates;
  int (*gate_of)(int k);
};

// Multiplies at most unpacked_rows rows of gate gradients, slot by slot, with the columns' vectors [begin, end). Each
// row has end - begin vectors of sums.
template <typename E>
void multiply_columns_of(
    const ColumnsOf& of, const E* const* a, int64_t rows, int64_t begin, int64_t end, Sum<E>* sums);

// c (units, columns) (+)= the outer products of a piece (long_sums.h) of `count` rows. a: `units` values, factor k at
// k * a_step. b: packed columns (outer.h). Adds to c unless `begin`. To: Totals, or Rounded for a single piece.
template <typename E, typename To>
void add_outer(
    const E* a, int64_t a_step, int64_t units, const E* b, int64_t count, int64_t columns, const To& c, bool begin);

}  // namespace fourfold::cpu::FOURFOLD_CPU_LEVEL
