#include "cpu/lltm_cell.h"

#include "cpu/cell.h"
#include "cpu/lltm_formula.h"

namespace fourfold::cpu::FOURFOLD_CPU_LEVEL {

namespace {

// Rows that make a part worth a thread of its own: some 2^14 activations.
int64_t cell_grain(int64_t hidden_size) { return 1 + (int64_t(1) << 14) / (3 * hidden_size + 1); }

template <typename S>
void forward(const LltmCellForward& job) {
  const int64_t size = job.hidden_size;
  const Vectorized<S> none[3] = {Vectorized<S>(S(0)), Vectorized<S>(S(0)), Vectorized<S>(S(0))};
  parallel(job.batch, cell_grain(size), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const ForwardRow<S> pointers{at_row(static_cast<const S*>(job.projection), row, 3 * size),
                                   at_row(static_cast<const S*>(job.c), row, size),
                                   at_row(static_cast<S*>(job.next_h), row, size),
                                   at_row(static_cast<S*>(job.next_c), row, size),
                                   at_row(static_cast<S*>(job.activated), row, 3 * size),
                                   nullptr};
      for (int64_t unit = 0; unit < size; unit += lanes<S>) forward_units<Lltm, S>(pointers, size, unit, none);
    }
  });
}

template <typename S>
void backward(const LltmCellBackward& job) {
  const int64_t size = job.hidden_size;
  parallel(job.batch, cell_grain(size), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const BackwardRow<S> pointers{at_row(static_cast<const S*>(job.activated), row, 3 * size),
                                    at_row(static_cast<const S*>(job.next_c), row, size),
                                    {at_row(static_cast<const S*>(job.grad_h), row, size), nullptr},
                                    at_row(static_cast<const S*>(job.grad_next_c), row, size),
                                    at_row(static_cast<S*>(job.grad_gates), row, 3 * size),
                                    at_row(static_cast<S*>(job.grad_c), row, size)};
      backward_row<Lltm, S>(pointers, size);
    }
  });
}

}  // namespace

void lltm_cell(const LltmCellForward& job) {
  job.kind == Kind::float64 ? forward<double>(job) : forward<float>(job);
}

void lltm_cell_backward(const LltmCellBackward& job) {
  job.kind == Kind::float64 ? backward<double>(job) : backward<float>(job);
}

}  // namespace fourfold::cpu::FOURFOLD_CPU_LEVEL
