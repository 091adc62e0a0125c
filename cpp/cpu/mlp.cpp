#include "cpu/mlp.h"

#include <type_traits>

#include "cpu/math.h"
#include "cpu/matmul.h"

namespace fourfold::cpu::FOURFOLD_CPU_LEVEL {

namespace formulas {
#include "formulas/mlp.h"
}

namespace {

// A matrix in memory.
template <typename S>
struct Operand {
  const S* data;
  int64_t row_stride;
  int64_t column_stride;
};

// finish(row, column, v, count) gives the value to store for each vector of the product of `rows` rows of a with b.
template <int width, typename S, typename F>
void product(const Operand<S>& a, const Packed<S, width>& b, int64_t rows, int64_t columns, S* out, const F& finish) {
  multiply_all(a.data, a.row_stride, a.column_stride, rows, b, columns,
               [&](int64_t row, int64_t column, const Vectorized<S>& v, int64_t count) {
                 store_lanes(out + row * columns + column, finish(row, column, v, count), count);
               });
}

// Calls f(width) with the number of vectors that a panel of so many columns is best wide, as a constant.
template <typename S, typename F>
void with_width(int64_t columns, const F& f) {
  if (columns <= lanes<S>) {
    f(std::integral_constant<int, 1>());
  } else if (columns <= 2 * lanes<S>) {
    f(std::integral_constant<int, 2>());
  } else {
    f(std::integral_constant<int, 3>());
  }
}

template <typename S, typename F>
void product(const Operand<S>& a, const Operand<S>& b, int64_t rows, int64_t depth, int64_t columns, S* out,
             const F& finish) {
  with_width<S>(columns, [&](auto width) {
    const Packed<S, width> packed(b.data, depth, columns, b.row_stride, b.column_stride);
    product<width>(a, packed, rows, columns, out, finish);
  });
}

template <typename S>
Vectorized<S> bias_at(const void* bias, int64_t column, int64_t count) {
  return bias == nullptr ? Vectorized<S>(S(0)) : load_lanes(static_cast<const S*>(bias) + column, count);
}

template <typename S, int hidden_width, int output_width>
void forward_blocks(const MlpForward& job) {
  constexpr int64_t block = 128;  // rows: their hidden layer stays in the cache between the two products
  const Packed<S, hidden_width> w1(
      static_cast<const S*>(job.hidden_weights), job.input_size, job.hidden_size, 1, job.input_size);
  const Packed<S, output_width> w2(
      static_cast<const S*>(job.output_weights), job.hidden_size, job.output_size, 1, job.hidden_size);
  const Scratch<S> scratch(job.hidden == nullptr ? block * job.hidden_size : 0);
  for (int64_t begin = 0; begin < job.batch; begin += block) {
    const int64_t rows = job.batch - begin < block ? job.batch - begin : block;
    S* hidden = job.hidden == nullptr ? scratch.get() : static_cast<S*>(job.hidden) + begin * job.hidden_size;
    product<hidden_width>(
        Operand<S>{static_cast<const S*>(job.x) + begin * job.input_size, job.input_size, 1}, w1, rows,
        job.hidden_size, hidden, [&](int64_t, int64_t column, const Vectorized<S>& v, int64_t count) {
          return formulas::relu(v + bias_at<S>(job.hidden_bias, column, count));
        });
    product<output_width>(
        Operand<S>{hidden, job.hidden_size, 1}, w2, rows, job.output_size,
        static_cast<S*>(job.output) + begin * job.output_size,
        [&](int64_t, int64_t column, const Vectorized<S>& v, int64_t count) {
          return v + bias_at<S>(job.output_bias, column, count);
        });
  }
}

template <typename S>
void forward(const MlpForward& job) {
  with_width<S>(job.hidden_size, [&](auto hidden_width) {
    with_width<S>(job.output_size, [&](auto output_width) { forward_blocks<S, hidden_width, output_width>(job); });
  });
}

template <typename S>
void column_sums(const S* from, int64_t rows, int64_t columns, S* to) {
  for (int64_t column = 0; column < columns; column += lanes<S>) {
    const int64_t count = columns - column < lanes<S> ? columns - column : lanes<S>;
    Vectorized<S> sum(S(0));
    for (int64_t row = 0; row < rows; ++row) sum = sum + load_lanes(from + row * columns + column, count);
    store_lanes(to + column, sum, count);
  }
}

template <typename S>
void backward(const MlpBackward& job) {
  const S* grad = static_cast<const S*>(job.grad);
  const S* x = static_cast<const S*>(job.x);
  const S* w1 = static_cast<const S*>(job.hidden_weights);
  const S* w2 = static_cast<const S*>(job.output_weights);
  const S* hidden = static_cast<const S*>(job.hidden);
  S* grad_hidden = static_cast<S*>(job.grad_hidden);
  const auto keep = [](int64_t, int64_t, const Vectorized<S>& v, int64_t) { return v; };
  product<S>(
      {grad, job.output_size, 1}, {w2, job.hidden_size, 1}, job.batch, job.output_size, job.hidden_size, grad_hidden,
      [&](int64_t row, int64_t column, const Vectorized<S>& v, int64_t count) {
        return formulas::relu_backward(v, load_lanes(hidden + row * job.hidden_size + column, count));
      });
  if (job.need_x) {
    product<S>({grad_hidden, job.hidden_size, 1}, {w1, job.input_size, 1}, job.batch, job.hidden_size, job.input_size,
               static_cast<S*>(job.grad_x), keep);
  }
  if (!job.need_weights) return;
  product<S>({grad, 1, job.output_size}, {hidden, job.hidden_size, 1}, job.output_size, job.batch, job.hidden_size,
             static_cast<S*>(job.grad_output_weights), keep);
  product<S>({grad_hidden, 1, job.hidden_size}, {x, job.input_size, 1}, job.hidden_size, job.batch, job.input_size,
             static_cast<S*>(job.grad_hidden_weights), keep);
  column_sums(grad, job.batch, job.output_size, static_cast<S*>(job.grad_output_bias));
  column_sums(static_cast<const S*>(grad_hidden), job.batch, job.hidden_size, static_cast<S*>(job.grad_hidden_bias));
}

}  // namespace

void mlp(const MlpForward& job) { job.kind == Kind::float64 ? forward<double>(job) : forward<float>(job); }

void mlp_backward(const MlpBackward& job) {
  job.kind == Kind::float64 ? backward<double>(job) : backward<float>(job);
}

void relu(Kind kind, int64_t n, void* values) {
  visit_floating(kind, [&](auto type) {
    using T = decltype(type);
    map<T>(n, values, [](const Vec<T>& v) { return formulas::relu(v); }, Strided{values, 1});
  });
}

void relu_backward(Kind kind, int64_t n, void* grad, const void* activated) {
  visit_floating(kind, [&](auto type) {
    using T = decltype(type);
    map<T>(
        n, grad, [](const Vec<T>& g, const Vec<T>& a) { return formulas::relu_backward(g, a); }, Strided{grad, 1},
        Strided{activated, 1});
  });
}

}  // namespace fourfold::cpu::FOURFOLD_CPU_LEVEL
