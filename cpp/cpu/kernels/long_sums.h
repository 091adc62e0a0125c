// Accurate sums of any number of rows: pieces of rows are summed from zero, and the pieces' sums are added with
// compensation of rounding errors.
#pragma once

#include "cpu/kernels/factor.h"

namespace fourfold::cpu::FOURFOLD_CPU_LEVEL {

// The rows of a piece, whose product is one chain of additions with growing rounding errors. A multiple of AMX's tiles.
inline constexpr int64_t piece_rows = 256;

// Up to this many pieces, plain addition loses less than the pieces themselves.
inline constexpr int64_t plain_pieces = 64;

// Splits `count` rows into pieces of similar size and calls f(first, rows) for each; for no rows, f(0, 0).
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

// A compensated sum: sum + lost is the total; lost is NaN if the sum is infinite.
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

// Adds `count` vectors load(k).
template <typename S, typename Load>
FOURFOLD_FN void add_rows(LongSum<S>& to, int64_t count, const Load& load) {
  int64_t k = 0;
  for (; k + 4 <= count; k += 4) to.add((load(k) + load(k + 1)) + (load(k + 2) + load(k + 3)));
  for (; k < count; ++k) to.add(load(k));
}

// A matrix that accumulates sums of pieces, and a second one for its rounding errors; null if there are few pieces.
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

  // begin: sets the value instead of adding.
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

  // Adds the rounding errors at the end.
  void finish(int64_t row, int64_t columns) const {
    for (int64_t column = 0; lost != nullptr && column < columns; column += lanes<S>) {
      const int64_t n = lanes_left<S>(columns, column);
      store_lanes(data + row * step + column, load(row, column, n).total(), n);
    }
  }
};

// The sums of a single piece, rounded to a type too short for totals.
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
