#include "cpu/lltm_cell.h"

#include "cpu/cells.h"
#include "cpu/panels.h"
#include "cpu/parallel.h"
#include "cpu/recurrent.h"

namespace fourfold::cpu::FOURFOLD_CPU_LEVEL {

namespace {

// Rows that make a part worth a thread of its own: some 2^14 activations.
int64_t cell_grain(int64_t hidden_size) { return 1 + (int64_t(1) << 14) / (3 * hidden_size + 1); }

template <typename S>
void forward(const LltmCellForward& job) {
  const int64_t size = job.hidden_size;
  const auto* projection = static_cast<const S*>(job.projection);
  auto* activated = static_cast<S*>(job.activated);
  parallel(job.batch, cell_grain(size), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t unit = 0; unit < size; unit += lanes<S>) {
        const int64_t count = lanes_left<S>(size, unit);
        const int64_t at = row * size + unit;
        Values<Vectorized<S>, 3> gates;
        Values<Vectorized<S>, 3> none;
        for (int g = 0; g < 3; ++g) {
          gates.v[g] = load_lanes(projection + (3 * row + g) * size + unit, count);
          none.v[g] = Vectorized<S>(S(0));
        }
        const auto next = Lltm::forward(gates, none, load_lanes(static_cast<const S*>(job.c) + at, count));
        store_lanes(static_cast<S*>(job.next_c) + at, next.state, count);
        store_lanes(static_cast<S*>(job.next_h) + at, next.h, count);
        if (activated == nullptr) continue;
        for (int g = 0; g < 3; ++g) store_lanes(activated + (3 * row + g) * size + unit, next.kept.v[g], count);
      }
    }
  });
}

template <typename S>
void backward(const LltmCellBackward& job) {
  const int64_t size = job.hidden_size;
  const auto* activated = static_cast<const S*>(job.activated);
  parallel(job.batch, cell_grain(size), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t unit = 0; unit < size; unit += lanes<S>) {
        const int64_t count = lanes_left<S>(size, unit);
        const int64_t at = row * size + unit;
        Values<Vectorized<S>, 3> kept;
        for (int g = 0; g < 3; ++g) kept.v[g] = load_lanes(activated + (3 * row + g) * size + unit, count);
        const auto next_c = load_lanes(static_cast<const S*>(job.next_c) + at, count);
        const auto result = Lltm::backward(
            kept, next_c, next_c, load_or_zero(static_cast<const S*>(job.grad_h), at, count),
            load_or_zero(static_cast<const S*>(job.grad_next_c), at, count));
        for (int g = 0; g < 3; ++g) {
          store_lanes(static_cast<S*>(job.grad_gates) + (3 * row + g) * size + unit, result.gates.v[g], count);
        }
        store_lanes(static_cast<S*>(job.grad_c) + at, result.state, count);
      }
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
