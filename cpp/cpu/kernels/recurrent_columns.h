// A recurrent layer's weights for the backward, packed for the call or unpacked. Both compute products of rows of gate
// gradients, slot by slot, with blocks of columns, one vector each.
#pragma once

#include "cpu/kernels/products.h"
#include "cpu/kernels/recurrent.h"

namespace fourfold::cpu::FOURFOLD_CPU_LEVEL {

// Blocks of columns, each a panel of one vector whose depth is the gates' units, slot by slot.
template <typename E>
struct PackedColumns {
  using M = Memory<E>;
  using S = Sum<E>;

  ColumnsOf of;
  E* data = nullptr;

  explicit PackedColumns(const ColumnsOf& of) : of(of) {}

  int64_t blocks() const { return divide_up(of.columns, lanes<S>); }
  int64_t depth() const { return of.gates * of.hidden_size; }
  int64_t panel_size() const { return factors<E>(depth()) * lanes<S>; }
  int64_t size() const { return blocks() * panel_size(); }
  int64_t room() const { return 0; }  // scratch memory of a thread
  E* panel(int64_t block) const { return data + block * panel_size(); }

  void pack(int64_t begin, int64_t end) const {
    for (int64_t block = begin; block < end; ++block) {
      const int64_t count = lanes_left<S>(of.columns, block * lanes<S>);
      const M* from = static_cast<const M*>(of.weights) + block * lanes<S>;
      for (int k = 0; k < of.gates; ++k) {
        pack_columns(from + of.gate_of(k) * of.hidden_size * of.leading_dim, of.leading_dim, of.hidden_size, count,
                     panel(block) + k * factors<E>(of.hidden_size) * lanes<S>, lanes<S>);
      }
    }
  }

  // Multiplies rows a with blocks [begin, end) and calls done(row, block, vector).
  template <typename F>
  void multiply_rows(const E* const* a, int64_t count, int64_t begin, int64_t end, S*, const F& done) const {
    alignas(64) S sums[most_vectors<1> * lanes<S>];
    for_groups(0, count, most_rows<1>, [&](int64_t from, int64_t rows) {
      for_groups(begin, end, panels_at_once(static_cast<int>(rows), 1), [&](int64_t block, int64_t panels) {
        Packed<1, E>::multiply(
            a + from, rows, {panel(block), panel_size(), factors<E>(depth())}, panels, {sums, panels * lanes<S>});
        const S* sum = sums;
        for (int64_t r = 0; r < rows; ++r) {
          for (int64_t p = 0; p < panels; ++p, sum += lanes<S>) done(from + r, block + p, Vectorized<S>::loadu(sum));
        }
      });
    });
  }
};

// In torch's layout.
template <typename E>
struct UnpackedColumns {
  using S = Sum<E>;

  ColumnsOf of;
  E* data = nullptr;

  explicit UnpackedColumns(const ColumnsOf& of) : of(of) {}

  int64_t blocks() const { return divide_up(of.columns, lanes<S>); }
  int64_t size() const { return 0; }
  int64_t room() const { return unpacked_rows * blocks() * lanes<S>; }
  void pack(int64_t, int64_t) const {}

  template <typename F>
  void multiply_rows(const E* const* a, int64_t count, int64_t begin, int64_t end, S* sums, const F& done) const {
    for_groups(0, count, unpacked_rows, [&](int64_t from, int64_t rows) {
      multiply_columns_of(of, a + from, rows, begin, end, sums);
      const S* sum = sums;
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t block = begin; block < end; ++block, sum += lanes<S>) {
          done(from + r, block, Vectorized<S>::loadu(sum));
        }
      }
    });
  }
};

}  // namespace fourfold::cpu::FOURFOLD_CPU_LEVEL
