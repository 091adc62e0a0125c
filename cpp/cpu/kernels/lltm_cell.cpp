#include "cpu/kernels/lltm_cell.h"

#include "cpu/kernels/cells.h"
#include "cpu/kernels/outer.h"
#include "cpu/parallel.h"
#include "cpu/kernels/products.h"
#include "cpu/kernels/recurrent.h"
#include "cpu/kernels/unpacked.h"

namespace fourfold::cpu::FOURFOLD_CPU_LEVEL {

namespace {

constexpr int gates = Lltm::gates;

// Rows per thread for the cells: about 2^14 activations.
int64_t cell_grain(int64_t hidden_size) { return 1 + (int64_t(1) << 14) / (gates * hidden_size + 1); }

// Items per thread for a product, each of `work` multiply-adds: about 2^21 multiply-adds.
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
        inputs_(columns_size<S>(by_lanes_, depth_)),
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
      const Scratch<S> room(Unpacked<gates, S>::room);
      const Scratch<S> projected(at_once * width);
      for (int64_t block = begin; block < end; ++block) multiply_block(block * lanes<S>, room.get(), projected.get());
    });
  }

 private:
  // Rows that fill vectors are the lanes of a product that broadcasts single weights. Few (remaining) rows use vectors
  // along the depth instead: the time is proportional to the number of rows, not of a whole vector, but needs
  // horizontal sums.
  static constexpr int64_t few = lanes<S> / 2;
  static constexpr int64_t at_once = 2 * lanes<S>;  // rows by lanes that are packed together
  static constexpr int64_t width = gates * lanes<S>;  // the size of a row's sums
  static_assert(at_once >= unpacked_rows);

  static int64_t rows_by_lanes(int64_t batch) {
    return batch % lanes<S> > few ? batch : batch / lanes<S> * lanes<S>;
  }

  const S* weights() const { return static_cast<const S*>(job_.factors.weights); }

  void collect_inputs() const {
    const auto* h = static_cast<const S*>(job_.factors.h);
    const auto* x = static_cast<const S*>(job_.factors.x);
    for (int64_t row = 0; row < by_lanes_; row += lanes<S>) {
      // The same layout as lay_out_columns of the rows [h, x].
      const int64_t pair = row / at_once * at_once;
      const int64_t step = by_lanes_ - pair > lanes<S> ? at_once : lanes<S>;
      S* to = inputs_.get() + pair * depth_ + (row - pair);
      const int64_t rows = lanes_left<S>(by_lanes_, row);
      pack_rows(h + row * size_, size_, size_, rows, to, step);
      pack_rows(x + row * input_size_, input_size_, input_size_, rows, to + size_ * step, step);
    }
    for (int64_t row = by_lanes_; row < job_.batch; ++row) {
      S* to = rows_.get() + (row - by_lanes_) * depth_;
      copy_values(to, h + row * size_, size_);
      copy_values(to + size_, x + row * input_size_, input_size_);
    }
  }

  // Computes the products of all rows with the weights of some hidden units, and their cells.
  void multiply_block(int64_t unit, S* room, S* projected) const {
    const int64_t count = lanes_left<S>(size_, unit);
    const S* bias = at_row(static_cast<const S*>(job_.factors.bias), unit, 1);
    const UnpackedBlock<S> block{weights() + unit * depth_, depth_, size_ * depth_, bias, size_, count, depth_};
    const RowSums<S> sums{projected, width};
    for (int64_t row = 0; row < by_lanes_; row += at_once) {
      const int64_t rows = least(at_once, by_lanes_ - row);
      Unpacked<gates, S>::by_columns(inputs_.get() + row * depth_, rows, block, room, sums);
      finish_rows(projected, row, rows, unit, count);
    }
    const S* a[unpacked_rows];
    for_groups(by_lanes_, job_.batch, unpacked_rows, [&](int64_t row, int64_t rows) {
      for (int64_t r = 0; r < rows; ++r) a[r] = rows_.get() + (row - by_lanes_ + r) * depth_;
      Unpacked<gates, S>::by_rows(a, rows, block, room, sums);
      finish_rows(projected, row, rows, unit, count);
    });
  }

  void finish_rows(const S* projected, int64_t row, int64_t rows, int64_t unit, int64_t count) const {
    for (int64_t r = 0; r < rows; ++r) {
      Values<Vectorized<S>, gates> values;
      for (int g = 0; g < gates; ++g) values.v[g] = Vectorized<S>::loadu(projected + r * width + g * lanes<S>);
      finish(values, row + r, unit, count);
    }
  }

  // Computes the cell of some units of a row.
  FOURFOLD_FN void finish(
      const Values<Vectorized<S>, gates>& projection, int64_t row, int64_t unit, int64_t count) const {
    Values<Vectorized<S>, gates> none;
    for (int g = 0; g < gates; ++g) none.v[g] = Vectorized<S>(S(0));
    const int64_t at = row * size_ + unit;
    const auto next = Lltm::forward(projection, none, load_lanes(static_cast<const S*>(job_.c) + at, count));
    store_lanes(static_cast<S*>(job_.next_c) + at, next.state, count);
    store_lanes(static_cast<S*>(job_.next_h) + at, next.h, count);
    if (!job_.keep) return;
    S* kept = static_cast<S*>(job_.kept) + gates * row * size_ + unit;
    for (int g = 0; g < gates; ++g) store_lanes(kept + g * size_, next.kept.v[g], count);
  }

  const LltmCellForward& job_;
  int64_t size_;
  int64_t input_size_;
  int64_t depth_;
  int64_t by_lanes_;   // the number of rows, the first ones, that are lanes
  Scratch<S> inputs_;  // their [h, x], transposed
  Scratch<S> rows_;    // [h, x] of the other rows
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
    const auto* kept = static_cast<const S*>(job_.kept);
    parallel(job_.batch, cell_grain(size_), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        for (int64_t unit = 0; unit < size_; unit += lanes<S>) {
          const int64_t count = lanes_left<S>(size_, unit);
          const int64_t at = row * size_ + unit;
          Values<Vectorized<S>, gates> values;
          for (int g = 0; g < gates; ++g) values.v[g] = load_lanes(kept + (gates * row + g) * size_ + unit, count);
          const auto next_c = load_lanes(static_cast<const S*>(job_.next_c) + at, count);
          const auto result = Lltm::backward(
              values, next_c, next_c, load_or_zero(static_cast<const S*>(job_.grad_h), at, count),
              load_or_zero(static_cast<const S*>(job_.grad_next_c), at, count));
          for (int g = 0; g < gates; ++g) {
            store_lanes(grad_gates_ + (gates * row + g) * size_ + unit, result.gates.v[g], count);
          }
          store_lanes(static_cast<S*>(job_.grad_c) + at, result.state, count);
        }
      }
    });
  }

  // A tile of the product below: some rows and some vectors of the `left` remaining columns. Each shape is a separate
  // function: inlined into one, the rows' addresses would be spilled to memory.
  template <int rows, int width>
  __attribute__((noinline)) void grad_input_tile(
      const S* const* grads, const S* weights, int64_t left, S* to, int64_t step) const {
    const int64_t last = lanes_left<S>(left, (width - 1) * lanes<S>);
    Tile<S, rows, width> tile;
    tile.clear();
    multiply_in_place<rows, width>(tile, grads, weights, depth_, gates * size_, last);
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 8
      for (int j = 0; j < width; ++j) {
        store_lanes(to + r * step + j * lanes<S>, tile.at[r][j], j == width - 1 ? last : lanes<S>);
      }
    }
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
          grad_input_tile<rows, width>(
              grads + first_row + from, weights + column, columns - column,
              to + (first_row + from) * columns + column, columns);
        });
      });
    });
  }

  void grad_weights(const S* const* h, const S* const* x) const {
    const int64_t input_size = job_.factors.input_size;
    const int64_t blocks = divide_up(size_, lanes<S>);
    // Each piece of rows is packed separately, one after the other.
    const Scratch<S> packed(outer_size<S>(size_, job_.batch) + outer_size<S>(input_size, job_.batch));
    const bool few = job_.batch <= plain_pieces * piece_rows;
    const Scratch<S> lost(few ? 0 : gates * size_ * depth_);
    S* packed_h = packed.get();
    S* packed_x = packed_h + outer_size<S>(size_, job_.batch);
    for_pieces(job_.batch, [&](int64_t first, int64_t count) {
      pack_outer(h + first, count, size_, packed_h + outer_size<S>(size_, first));
      pack_outer(x + first, count, input_size, packed_x + outer_size<S>(input_size, first));
    });
    const Totals<S> all{static_cast<S*>(job_.grad_weights), depth_, few ? nullptr : lost.get(), depth_};
    parallel(gates * blocks, product_grain(job_.batch * lanes<S> * depth_), [&](int64_t begin, int64_t end) {
      for (int64_t item = begin; item < end; ++item) {
        const int64_t unit = item % blocks * lanes<S>;
        const int64_t units = lanes_left<S>(size_, unit);
        const int64_t row = item / blocks * size_ + unit;
        if (job_.grad_bias != nullptr) {
          store_lanes(static_cast<S*>(job_.grad_bias) + row, sum_of_rows(row, units), units);
        }
        for_pieces(job_.batch, [&](int64_t first, int64_t count) {
          const S* from = grad_gates_ + first * gates * size_ + row;
          add_outer(from, gates * size_, units, packed_h + outer_size<S>(size_, first), count, size_, all.at(row, 0),
                    first == 0);
          add_outer(from, gates * size_, units, packed_x + outer_size<S>(input_size, first), count, input_size,
                    all.at(row, size_), first == 0);
        });
        for (int64_t u = 0; u < units; ++u) all.finish(row + u, depth_);
      }
    });
  }

  Vectorized<S> sum_of_rows(int64_t column, int64_t count) const {
    LongSum<S> sum;
    add_rows(sum, job_.batch, [&](int64_t b) { return load_lanes(grad_gates_ + b * gates * size_ + column, count); });
    return sum.total();
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
