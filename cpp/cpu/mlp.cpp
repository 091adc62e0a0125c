#include "cpu/mlp.h"

#include "cpu/math.h"
#include "cpu/matmul.h"

namespace fourfold::cpu::FOURFOLD_CPU_LEVEL {

namespace formulas {
#include "formulas/mlp.h"
}

namespace {

// out (rows, columns) = a b, with `finish(row, column, v, count)` the value to store for a vector of the product.
// a is (rows, depth) by its strides, b (depth, columns) by its own.
template <typename S>
struct Operand {
  const S* data;
  int64_t row_stride;
  int64_t column_stride;
};

template <int width, typename S, typename F>
void product(const Operand<S>& a, const Operand<S>& b, int64_t rows, int64_t depth, int64_t columns, S* out,
             const F& finish) {
  const Packed<S, width> packed(b.data, depth, columns, b.row_stride, b.column_stride);
  multiply_all(a.data, a.row_stride, a.column_stride, rows, packed, columns,
               [&](int64_t row, int64_t column, const Vectorized<S>& v, int64_t count) {
                 store_lanes(out + row * columns + column, finish(row, column, v, count), count);
               });
}

template <typename S, typename F>
void product(const Operand<S>& a, const Operand<S>& b, int64_t rows, int64_t depth, int64_t columns, S* out,
             const F& finish) {
  if (columns <= lanes<S>) {
    product<1>(a, b, rows, depth, columns, out, finish);
  } else if (columns <= 2 * lanes<S>) {
    product<2>(a, b, rows, depth, columns, out, finish);
  } else {
    product<3>(a, b, rows, depth, columns, out, finish);
  }
}

template <typename S>
Vectorized<S> bias_at(const void* bias, int64_t column, int64_t count) {
  return bias == nullptr ? Vectorized<S>(S(0)) : load_lanes(static_cast<const S*>(bias) + column, count);
}

template <typename S>
void forward(const MlpForward& job) {
  const S* x = static_cast<const S*>(job.x);
  const S* w1 = static_cast<const S*>(job.hidden_weights);
  const S* w2 = static_cast<const S*>(job.output_weights);
  S* hidden = static_cast<S*>(job.hidden);
  product<S>(
      {x, job.input_size, 1}, {w1, 1, job.input_size}, job.batch, job.input_size, job.hidden_size, hidden,
      [&](int64_t, int64_t column, const Vectorized<S>& v, int64_t count) {
        return formulas::relu(v + bias_at<S>(job.hidden_bias, column, count));
      });
  product<S>(
      {hidden, job.hidden_size, 1}, {w2, 1, job.hidden_size}, job.batch, job.hidden_size, job.output_size,
      static_cast<S*>(job.output), [&](int64_t, int64_t column, const Vectorized<S>& v, int64_t count) {
        return v + bias_at<S>(job.output_bias, column, count);
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
