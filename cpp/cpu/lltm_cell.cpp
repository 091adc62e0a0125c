#include "cpu/lltm_cell.h"

#include "cpu/cells.h"
#include "cpu/outer.h"
#include "cpu/parallel.h"
#include "cpu/recurrent.h"
#include "cpu/unpacked.h"

namespace fourfold::cpu::FOURFOLD_CPU_LEVEL {

namespace {

constexpr int gates = Lltm::gates;

// Rows that make a part worth a thread of its own: some 2^14 activations.
int64_t cell_grain(int64_t hidden_size) { return 1 + (int64_t(1) << 14) / (gates * hidden_size + 1); }

// The same of a product, whose items take so many multiply-adds each: some 2^21.
int64_t product_grain(int64_t work) { return 1 + (int64_t(1) << 21) / (work + 1); }

template <typename S>
class Forward {
 public:
  explicit Forward(const LltmCellForward& job)
      : job_(job),
        size_(job.hidden_size),
        input_size_(job.factors.input_size),
        depth_(size_ + input_size_),
        by_lanes_(rows_by_lanes(job.batch)),
        inputs_(by_lanes_ == 0 ? 0 : groups(by_lanes_) * lanes<S> * depth_),
        rows_((job.batch - by_lanes_) * depth_) {}

  void apply() const {
    const auto* projection = static_cast<const S*>(job_.projection);
    parallel(job_.batch, cell_grain(size_), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        for (int64_t unit = 0; unit < size_; unit += lanes<S>) {
          const int64_t count = lanes_left<S>(size_, unit);
          Values<Vectorized<S>, gates> values;
          for (int g = 0; g < gates; ++g) {
            values.v[g] = load_lanes(projection + (gates * row + g) * size_ + unit, count);
          }
          finish(values, row, unit, count);
        }
      }
    });
  }

  void multiply_and_apply() const {
    collect_inputs();
    const int64_t blocks = divide_up(size_, lanes<S>);
    parallel(blocks, product_grain(job_.batch * gates * lanes<S> * depth_), [&](int64_t begin, int64_t end) {
      const Scratch<S> sums(gates * lanes<S> * lanes<S> * 8);
      const Scratch<S> projected(gates * lanes<S> * lanes<S>);
      for (int64_t block = begin; block < end; ++block) {
        const int64_t unit = block * lanes<S>;
        const int64_t count = lanes_left<S>(size_, unit);
        multiply_by_lanes(unit, count, sums.get(), projected.get());
        multiply_by_rows(unit, count, sums.get());
      }
    });
  }

 private:
  // Rows that fill vectors are the lanes of a product whose factors from the weights are single values. Few rows, or
  // what few are left, are multiplied by vectors along the depth instead: their time is that of so many rows, and not
  // of a whole vector, but their sums cost more.
  //
  // A tile of either has few rows of weights. More would not keep the multipliers busier, and where the weights'
  // leading dimension is a power of two, they would push each other out of the cache: all lie in the same of its sets.
  static constexpr int64_t few = lanes<S> / 2;

  static int64_t rows_by_lanes(int64_t batch) {
    return batch % lanes<S> > few ? batch : batch / lanes<S> * lanes<S>;
  }
  static int64_t groups(int64_t rows) { return divide_up(rows, lanes<S>); }

  // Where a group of lanes begins: the last one overlaps the one before where that fills it.
  int64_t first_row_of(int64_t group) const {
    return greatest(least(group * lanes<S>, by_lanes_ - lanes<S>), 0);
  }

  const S* weights() const { return static_cast<const S*>(job_.factors.weights); }

  void collect_inputs() const {
    const auto* h = static_cast<const S*>(job_.factors.h);
    const auto* x = static_cast<const S*>(job_.factors.x);
    const int64_t count = groups(by_lanes_);
    for (int64_t group = 0; group < count; ++group) {
      // Groups in pairs, each pair's vectors side by side.
      const bool paired = group / 2 * 2 + 1 < count;
      const int64_t step = (paired ? 2 : 1) * lanes<S>;
      S* to = inputs_.get() + group / 2 * 2 * depth_ * lanes<S> + (paired ? group % 2 * lanes<S> : 0);
      const int64_t row = first_row_of(group);
      const int64_t rows = least(lanes<S>, by_lanes_ - row);
      pack_rows(h + row * size_, size_, size_, rows, to, step);
      pack_rows(x + row * input_size_, input_size_, input_size_, rows, to + size_ * step, step);
    }
    for (int64_t row = by_lanes_; row < job_.batch; ++row) {
      S* to = rows_.get() + (row - by_lanes_) * depth_;
      copy_values(to, h + row * size_, size_);
      copy_values(to + size_, x + row * input_size_, input_size_);
    }
  }

  Vectorized<S> bias_at(int g, int64_t unit, int64_t count) const {
    return load_or_zero(static_cast<const S*>(job_.factors.bias), g * size_ + unit, count);
  }

  void multiply_by_lanes(int64_t unit, int64_t count, S* sums, S* projected) const {
    const int64_t all = groups(by_lanes_);
    for (int64_t group = 0; group < all; group += 2) {
      with_count<2>(least(2, all - group), [&](auto vectors) {
        constexpr int most_units = least(fitting(gates * vectors), 4);
        for_panels<most_units>(0, count, [&](int64_t first, auto units) {
          Tile<S, gates * units, vectors> tile;
          for (int t = 0; t < gates * units; ++t) {
            for (int j = 0; j < vectors; ++j) tile.at[t][j] = Vectorized<S>(S(0));
          }
          multiply_columns<gates, units, vectors, S>(
              tile, weights() + (unit + first) * depth_, size_ * depth_, depth_,
              inputs_.get() + group * depth_ * lanes<S>, depth_);
          for (int g = 0; g < gates; ++g) {
            for (int u = 0; u < units; ++u) {
              for (int j = 0; j < vectors; ++j) {
                tile.at[g * units + u][j].store(sums + ((j * gates + g) * lanes<S> + first + u) * lanes<S>);
              }
            }
          }
        });
        for (int j = 0; j < vectors; ++j) {
          for (int g = 0; g < gates; ++g) {
            transpose_square(
                static_cast<const S*>(sums) + (j * gates + g) * lanes<S> * lanes<S>, lanes<S>,
                projected + g * lanes<S>, gates * lanes<S>);
          }
          const int64_t row = first_row_of(group + j);
          const int64_t rows = least(lanes<S>, by_lanes_ - row);
          for (int64_t r = 0; r < rows; ++r) {
            Values<Vectorized<S>, gates> values;
            for (int g = 0; g < gates; ++g) {
              const S* from = projected + (r * gates + g) * lanes<S>;
              values.v[g] = load_lanes(from, count) + bias_at(g, unit, count);
            }
            finish(values, row + r, unit, count);
          }
        }
      });
    }
  }

  void multiply_by_rows(int64_t unit, int64_t count, S* sums) const {
    for_row_tiles<gates>(job_.batch - by_lanes_, [&](int64_t from, auto rows) {
      constexpr int most_units = least(fitting(gates * rows), 2);
      for_panels<most_units>(0, count, [&](int64_t first, auto units) {
        Tile<S, gates * units, rows> tile;
        for (int t = 0; t < gates * units; ++t) {
          for (int r = 0; r < rows; ++r) tile.at[t][r] = Vectorized<S>(S(0));
        }
        const S* row[decltype(rows)::value];
        for (int r = 0; r < rows; ++r) row[r] = rows_.get() + (from + r) * depth_;
        multiply_rows<gates, units, rows, S>(
            tile, weights() + (unit + first) * depth_, size_ * depth_, depth_, row, depth_);
        for (int g = 0; g < gates; ++g) {
          for (int u = 0; u < units; ++u) {
            for (int r = 0; r < rows; ++r) {
              tile.at[g * units + u][r].store(sums + ((r * gates + g) * lanes<S> + first + u) * lanes<S>);
            }
          }
        }
      });
      for (int r = 0; r < rows; ++r) {
        Values<Vectorized<S>, gates> values;
        for (int g = 0; g < gates; ++g) {
          const S* from = sums + (r * gates + g) * lanes<S> * lanes<S>;
          values.v[g] = sum_lanes(from) + bias_at(g, unit, count);
        }
        finish(values, by_lanes_ + from + r, unit, count);
      }
    });
  }

  // The cell of some units of a row.
  FOURFOLD_FN void finish(
      const Values<Vectorized<S>, gates>& projection, int64_t row, int64_t unit, int64_t count) const {
    Values<Vectorized<S>, gates> none;
    for (int g = 0; g < gates; ++g) none.v[g] = Vectorized<S>(S(0));
    const int64_t at = row * size_ + unit;
    const auto next = Lltm::forward(projection, none, load_lanes(static_cast<const S*>(job_.c) + at, count));
    store_lanes(static_cast<S*>(job_.next_c) + at, next.state, count);
    store_lanes(static_cast<S*>(job_.next_h) + at, next.h, count);
    if (!job_.keep) return;
    S* kept = static_cast<S*>(job_.activated) + gates * row * size_ + unit;
    for (int g = 0; g < gates; ++g) store_lanes(kept + g * size_, next.kept.v[g], count);
  }

  const LltmCellForward& job_;
  int64_t size_;
  int64_t input_size_;
  int64_t depth_;
  int64_t by_lanes_;   // how many rows, the first
  Scratch<S> inputs_;  // their [h, x], transposed
  Scratch<S> rows_;    // that of the others
};

template <typename S>
class Backward {
 public:
  explicit Backward(const LltmCellBackward& job)
      : job_(job),
        size_(job.hidden_size),
        depth_(size_ + job.factors.input_size),
        own_gates_(job.multiply ? gates * size_ * job.batch : 0),
        grad_gates_(job.multiply ? own_gates_.get() : static_cast<S*>(job.grad_gates)) {}

  void run() const {
    apply();
    if (!job_.multiply) return;
    const Scratch<const S*> lists(3 * job_.batch);
    const S** grads = lists.get();
    const S** h = grads + job_.batch;
    const S** x = h + job_.batch;
    for (int64_t row = 0; row < job_.batch; ++row) {
      grads[row] = grad_gates_ + gates * row * size_;
      h[row] = static_cast<const S*>(job_.factors.h) + row * size_;
      x[row] = static_cast<const S*>(job_.factors.x) + row * job_.factors.input_size;
    }
    if (job_.need_h) grad_inputs(grads, 0, size_, static_cast<S*>(job_.grad_previous_h));
    if (job_.need_x) grad_inputs(grads, size_, job_.factors.input_size, static_cast<S*>(job_.grad_x));
    if (job_.need_weights) grad_weights(h, x);
  }

 private:
  void apply() const {
    const auto* activated = static_cast<const S*>(job_.activated);
    parallel(job_.batch, cell_grain(size_), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        for (int64_t unit = 0; unit < size_; unit += lanes<S>) {
          const int64_t count = lanes_left<S>(size_, unit);
          const int64_t at = row * size_ + unit;
          Values<Vectorized<S>, gates> kept;
          for (int g = 0; g < gates; ++g) kept.v[g] = load_lanes(activated + (gates * row + g) * size_ + unit, count);
          const auto next_c = load_lanes(static_cast<const S*>(job_.next_c) + at, count);
          const auto result = Lltm::backward(
              kept, next_c, next_c, load_or_zero(static_cast<const S*>(job_.grad_h), at, count),
              load_or_zero(static_cast<const S*>(job_.grad_next_c), at, count));
          for (int g = 0; g < gates; ++g) {
            store_lanes(grad_gates_ + (gates * row + g) * size_ + unit, result.gates.v[g], count);
          }
          store_lanes(static_cast<S*>(job_.grad_c) + at, result.state, count);
        }
      }
    });
  }

  // The gates' gradients times the weights' columns from `first` on.
  void grad_inputs(const S* const* grads, int64_t first, int64_t columns, S* to) const {
    if (columns == 0) return;
    const S* weights = static_cast<const S*>(job_.factors.weights) + first;
    parallel(divide_up(job_.batch, 8), product_grain(8 * gates * size_ * columns), [&](int64_t begin, int64_t end) {
      const int64_t first_row = begin * 8;
      for_row_tiles<1>(least(end * 8, job_.batch) - first_row, [&](int64_t from, auto rows) {
        for_panels<panels_at_once(rows, 1)>(0, divide_up(columns, lanes<S>), [&](int64_t vector, auto width) {
          const int64_t column = vector * lanes<S>;
          const int64_t last = lanes_left<S>(columns, column + (width - 1) * lanes<S>);
          Tile<S, rows, width> tile;
          tile.clear();
          multiply_in_place<rows, width>(
              tile, grads + first_row + from, weights + column, depth_, gates * size_, last);
          for (int r = 0; r < rows; ++r) {
            S* out = to + (first_row + from + r) * columns + column;
            for (int j = 0; j < width; ++j) {
              store_lanes(out + j * lanes<S>, tile.at[r][j], j == width - 1 ? last : lanes<S>);
            }
          }
        });
      });
    });
  }

  void grad_weights(const S* const* h, const S* const* x) const {
    const int64_t input_size = job_.factors.input_size;
    const int64_t blocks = divide_up(size_, lanes<S>);
    const Scratch<S> packed(outer_size<S>(size_, job_.batch) + outer_size<S>(input_size, job_.batch));
    S* packed_h = packed.get();
    S* packed_x = packed_h + outer_size<S>(size_, job_.batch);
    pack_outer(h, job_.batch, size_, packed_h);
    pack_outer(x, job_.batch, input_size, packed_x);
    parallel(gates * blocks, product_grain(job_.batch * lanes<S> * depth_), [&](int64_t begin, int64_t end) {
      for (int64_t item = begin; item < end; ++item) {
        const int64_t unit = item % blocks * lanes<S>;
        const int64_t units = lanes_left<S>(size_, unit);
        const int64_t row = item / blocks * size_ + unit;
        if (job_.grad_bias != nullptr) {
          store_lanes(static_cast<S*>(job_.grad_bias) + row, sum_of_rows(row, units), units);
        }
        S* to = static_cast<S*>(job_.grad_weights) + row * depth_;
        add_products(row, units, packed_h, size_, to);
        add_products(row, units, packed_x, input_size, to + size_);
      }
    });
  }

  Vectorized<S> sum_of_rows(int64_t column, int64_t count) const {
    Vectorized<S> sum(S(0));
    for (int64_t b = 0; b < job_.batch; ++b) sum = sum + load_lanes(grad_gates_ + b * gates * size_ + column, count);
    return sum;
  }

  void add_products(int64_t unit, int64_t units, const S* packed, int64_t columns, S* to) const {
    const S* from = grad_gates_ + unit;
    for_outer_panels<S>(columns, [&](int64_t vector, auto width) {
      const int64_t column = vector * lanes<S>;
      for_row_tiles<width>(units, [&](int64_t first, auto rows) {
        outer_tile<rows, width>(
            from + first, gates * size_, packed + column * job_.batch, job_.batch, columns - column,
            to + first * depth_ + column, depth_, true);
      });
    });
  }

  const LltmCellBackward& job_;
  int64_t size_;
  int64_t depth_;
  Scratch<S> own_gates_;
  S* grad_gates_;  // (batch, 3 * hidden_size)
};

template <typename S>
void forward(const LltmCellForward& job) {
  const Forward<S> step(job);
  job.multiply ? step.multiply_and_apply() : step.apply();
}

}  // namespace

void lltm_cell(const LltmCellForward& job) {
  job.kind == Kind::float64 ? forward<double>(job) : forward<float>(job);
}

void lltm_cell_backward(const LltmCellBackward& job) {
  job.kind == Kind::float64 ? Backward<double>(job).run() : Backward<float>(job).run();
}

}  // namespace fourfold::cpu::FOURFOLD_CPU_LEVEL
