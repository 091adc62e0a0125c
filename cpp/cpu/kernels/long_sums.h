// Sums of any number of rows that keep their digits: pieces of some rows are summed from zero, and what is added up of
// pieces keeps what its roundings have lost.
#pragma once

#include "cpu/kernels/factor.h"

namespace fourfold::cpu::FOURFOLD_CPU_LEVEL {

// Rows of which a product is one chain of additions, whose rounding errors grow with its length; whole tiles of AMX.
inline constexpr int64_t piece_rows = 256;

// The totals of so many pieces lose less than the pieces themselves do.
inline constexpr int64_t plain_pieces = 64;

// Cuts `count` rows into pieces of about the same size and calls f(first, rows) for each; for no rows, f(0, 0).
template <typename F>
void for_pieces(int64_t count, const F& f) {
  const int64_t pieces = count <= piece_rows ? 1 : (count + piece_rows - 1) / piece_rows;
  const int64_t size = ((count + pieces - 1) / pieces + 31) / 32 * 32;
  int64_t first = 0;
  do {
    f(first, count - first < size ? count - first : size);
    first += size;
  } while (first < count);
}

// sum + lost is what was added up; `lost` is NaN where the sum is infinite.
template <typename S>
struct LongSum {
  Vectorized<S> sum{S(0)};
  Vectorized<S> lost{S(0)};

  FOURFOLD_FN void add(const Vectorized<S>& v) {
    const auto next = sum + v;
    const auto added = next - sum;
    lost = lost + ((sum - (next - added)) + (v - added));
    sum = next;
  }

  FOURFOLD_FN Vectorized<S> total() const { return Vectorized<S>::blendv(sum, sum + lost, lost == lost); }
};

// The same over `count` vectors, load(k).
template <typename S, typename Load>
FOURFOLD_FN void add_rows(LongSum<S>& to, int64_t count, const Load& load) {
  int64_t k = 0;
  for (; k + 4 <= count; k += 4) to.add((load(k) + load(k + 1)) + (load(k + 2) + load(k + 3)));
  for (; k < count; ++k) to.add(load(k));
}

// A matrix that sums of pieces are added to, and in memory of the same size what that loses; null where pieces are few.
template <typename S>
struct Totals {
  S* data;
  int64_t step;  // from one row to the next
  S* lost = nullptr;
  int64_t lost_step = 0;

  Totals at(int64_t row, int64_t column) const {
    return {data + row * step + column, step, lost == nullptr ? nullptr : lost + row * lost_step + column, lost_step};
  }

  FOURFOLD_FN LongSum<S> load(int64_t row, int64_t column, int64_t n) const {
    LongSum<S> total{load_lanes(static_cast<const S*>(data + row * step + column), n)};
    if (lost != nullptr) total.lost = load_lanes(static_cast<const S*>(lost + row * lost_step + column), n);
    return total;
  }

  FOURFOLD_FN void store(int64_t row, int64_t column, int64_t n, const LongSum<S>& total) const {
    store_lanes(data + row * step + column, total.sum, n);
    if (lost != nullptr) store_lanes(lost + row * lost_step + column, total.lost, n);
  }

  // `begin`: sets it instead.
  FOURFOLD_FN void add(int64_t row, int64_t column, const Vectorized<S>& v, int64_t n, bool begin) const {
    if (begin) return store(row, column, n, {v});
    LongSum<S> total = load(row, column, n);
    if (lost == nullptr) {
      total.sum = total.sum + v;
    } else {
      total.add(v);
    }
    store(row, column, n, total);
  }

  // Adds what was lost, at the end.
  void finish(int64_t row, int64_t columns) const {
    for (int64_t column = 0; lost != nullptr && column < columns; column += lanes<S>) {
      const int64_t n = lanes_left<S>(columns, column);
      store_lanes(data + row * step + column, load(row, column, n).total(), n);
    }
  }
};

// The only piece's sums, where they are returned, in a type that could not hold totals.
template <typename M>
struct Rounded {
  M* data;
  int64_t step;

  Rounded at(int64_t row, int64_t column) const { return {data + row * step + column, step}; }

  template <typename V>
  FOURFOLD_FN void add(int64_t row, int64_t column, const V& v, int64_t n, bool) const {
    store_lanes(data + row * step + column, v, n);
  }
};

}  // namespace fourfold::cpu::FOURFOLD_CPU_LEVEL
