// Applies a formula to an elementwise job's operands: vectorised for floating point, one by one for integers.
#pragma once

#include <utility>

#include "cpu/kernels/elementwise.h"
#include "cpu/kernels/vec.h"
#include "ops/formula.h"

namespace fourfold::cpu::FOURFOLD_CPU_LEVEL {

// Inputs that aren't contiguous in the result's order are gathered in blocks of gathered_bytes, which stay in the L1
// cache; if all rows are the same (a bias), only once. Rows of long_row elements or more are processed one at a time,
// in place if they are contiguous.
inline constexpr int64_t gathered_bytes = 2048;
inline constexpr int64_t long_row = 48;

// Copies rows of elements with stride column_stride. For few columns the loop overhead dominates, so common column
// counts and strides are compile-time constants.
template <int known_columns, int known_stride, typename T>
void copy_rows(const T* from, int64_t rows, int64_t row_stride, int64_t columns, int64_t column_stride, T* to) {
  if constexpr (known_columns > 0) columns = known_columns;
  if constexpr (known_stride >= 0) column_stride = known_stride;
  for (int64_t r = 0; r < rows; ++r, from += row_stride, to += columns) {
    for (int64_t c = 0; c < columns; ++c) to[c] = from[c * column_stride];
  }
}

template <typename T>
void copy_rows(const T* from, int64_t rows, int64_t row_stride, int64_t columns, int64_t column_stride, T* to) {
  const auto copy = [&](auto known_columns, auto known_stride) {
    copy_rows<known_columns.value, known_stride.value>(from, rows, row_stride, columns, column_stride, to);
  };
  constexpr std::integral_constant<int, -1> any;
  switch (columns) {
    case 2: return copy(std::integral_constant<int, 2>(), any);
    case 3: return copy(std::integral_constant<int, 3>(), any);
    case 4: return copy(std::integral_constant<int, 4>(), any);
    case 8: return copy(std::integral_constant<int, 8>(), any);
    default: break;
  }
  switch (column_stride) {
    case 0: return copy(any, std::integral_constant<int, 0>());
    case 1: return copy(any, std::integral_constant<int, 1>());
    case 2: return copy(any, std::integral_constant<int, 2>());
    default: return copy(any, any);
  }
}

// Iterates over an operand's elements in the result's order, from the at-th on. T is const for an input.
template <typename T>
class Walk {
  using Value = std::remove_const_t<T>;

 public:
  Walk(const Elementwise& job, int operand, T* data, int64_t at) : job_(job), operand_(operand), from_(data) {
    int64_t next = 1;  // the stride of this axis in a contiguous tensor
    for (int d = job.axes - 1; d >= 0; --d) {
      side_by_side_ = side_by_side_ && stride(d) == next;
      same_rows_ = same_rows_ && (d == job.axes - 1 || stride(d) == 0);
      next *= job.axis[d].size;
      index_[d] = at % job.axis[d].size;
      at /= job.axis[d].size;
      from_ += index_[d] * stride(d);
    }
  }

  bool side_by_side() const { return side_by_side_; }
  // Whether all rows are the same memory, as for a bias.
  bool same_rows() const { return same_rows_; }
  bool row_is_strided() const { return stride(last()) != 0 && stride(last()) != 1; }
  int64_t left_of_row() const { return job_.axis[last()].size - index_[last()]; }
  // The number of rows with a constant stride, from this one on.
  int64_t left_of_rows() const { return last() == 0 ? 1 : job_.axis[last() - 1].size - index_[last() - 1]; }

  // The r-th row from the current one.
  T* row(int64_t r) const { return last() <= 0 ? from_ : from_ + r * stride(last() - 1); }

  // `count` elements of that row, at most as many as are left.
  Elements<Value> row(int64_t r, int64_t count, Value* to) const {
    if (!row_is_strided()) return {row(r), stride(last())};
    copy_rows(row(r), 1, 0, count, stride(last()), to);
    return {to, 1};
  }

  // Returns `count` elements and advances past them. If all rows are the same, later calls find them in `to` already.
  Elements<Value> gather(int64_t count, Value* to) {
    if (side_by_side_) return {(from_ += count) - count, 1};
    if (same_rows_ && gathered_) return {to, 1};
    gathered_ = true;
    const int64_t columns = job_.axis[last()].size;
    for (int64_t done = 0; done < count;) {
      const int64_t left = count - done;
      const bool whole = index_[last()] == 0 && left >= columns;
      const int64_t n = whole ? columns : left_of_row() < left ? left_of_row() : left;
      const int64_t rows = !whole ? 1 : left_of_rows() < left / columns ? left_of_rows() : left / columns;
      copy_rows(from_, rows, last() == 0 ? 0 : stride(last() - 1), n, stride(last()), to + done);
      advance(rows, n);
      done += rows * n;
    }
    return {to, 1};
  }

  // Advances past `count` elements of a row, or past whole rows.
  void advance(int64_t rows, int64_t count) {
    int d = last();
    if (d > 0 && count == job_.axis[d].size) {
      from_ += rows * stride(--d);
      index_[d] += rows;
    } else {
      from_ += count * stride(d);
      index_[d] += count;
    }
    for (; d > 0 && index_[d] == job_.axis[d].size; --d) {
      from_ += stride(d - 1) - index_[d] * stride(d);
      index_[d] = 0;
      ++index_[d - 1];
    }
  }

 private:
  int last() const { return job_.axes - 1; }
  int64_t stride(int d) const { return job_.axis[d].stride[operand_]; }

  const Elementwise& job_;
  int operand_;
  T* from_;
  bool side_by_side_ = true;
  bool same_rows_ = true;
  bool gathered_ = false;
  int64_t index_[Elementwise::most_axes];
};

// Calls run(count, out, inputs…) for parts of [begin, end); the inputs are Elements.
template <typename T, size_t... k, typename Run>
void for_runs(const Elementwise& job, int64_t begin, int64_t end, std::index_sequence<k...>, const Run& run) {
  Walk<T> out(job, 0, static_cast<T*>(job.out), begin);
  Walk<const T> walks[] = {Walk<const T>(job, k + 1, static_cast<const T*>(job.in[k]), begin)...};
  if (out.side_by_side() && (walks[k].side_by_side() && ...)) {
    return run(end - begin, out.row(0), Elements<T>{walks[k].row(0), 1}...);
  }
  constexpr int64_t most = gathered_bytes / sizeof(T);
  alignas(64) T gathered[sizeof...(k)][most];
  const auto least = [](int64_t a, int64_t b) { return a < b ? a : b; };
  const int64_t columns = job.axis[job.axes - 1].size;
  const bool one_copy = columns <= most && ((walks[k].side_by_side() || walks[k].same_rows()) && ...);
  if (out.side_by_side() && (columns < long_row || one_copy)) {
    const int64_t step = columns <= most ? most / columns * columns : most;  // whole rows
    for (T* to = out.row(0); begin < end; begin += step, to += step) {
      const int64_t count = least(step, end - begin);
      run(count, to, walks[k].gather(count, gathered[k])...);
    }
    return;
  }
  const bool copies = (walks[k].row_is_strided() || ...);
  while (begin < end) {
    const int64_t left = least(out.left_of_row(), end - begin);
    const int64_t count = copies ? least(left, most) : left;
    const int64_t rows = count < columns ? 1 : least(out.left_of_rows(), (end - begin) / columns);
    for (int64_t r = 0; r < rows; ++r) run(count, out.row(r), walks[k].row(r, count, gathered[k])...);
    out.advance(rows, count);
    (walks[k].advance(rows, count), ...);
    begin += rows * count;
  }
}

template <template <typename> typename Formula, typename Function, typename T>
void apply_to(const Elementwise& job, int64_t begin, int64_t end) {
  const typename Function::Indices inputs;
  if constexpr (std::is_integral_v<T>) {
    const auto formula = formula_of_integers<Formula>(job);
    for_runs<T>(job, begin, end, inputs, [&](int64_t count, T* to, const auto&... in) {
      for (int64_t i = 0; i < count; ++i) {
        to[i] = static_cast<T>(Function::call(formula, static_cast<uint64_t>(in.data[i * in.stride])...));
      }
    });
  } else {
    const auto formula =
        formula_of<Formula, Vec<T>>(job, [](double scalar) { return Vec<T>(static_cast<Compute<T>>(scalar)); });
    for_runs<T>(job, begin, end, inputs, [&](int64_t count, T* to, const auto&... in) {
      map<T>(count, to, [formula](const auto&... v) { return Function::call(formula, v...); }, in...);
    });
  }
}

template <template <typename> typename Formula, typename Function>
void apply(const Elementwise& job, int64_t begin, int64_t end) {
  if constexpr (Formula<float>::of_integers) {
    switch (job.kind) {
      case Kind::boolean: return apply_to<Formula, Function, bool>(job, begin, end);
      case Kind::uint8: return apply_to<Formula, Function, uint8_t>(job, begin, end);
      case Kind::int8: return apply_to<Formula, Function, int8_t>(job, begin, end);
      case Kind::int16: return apply_to<Formula, Function, int16_t>(job, begin, end);
      case Kind::int32: return apply_to<Formula, Function, int32_t>(job, begin, end);
      case Kind::int64: return apply_to<Formula, Function, int64_t>(job, begin, end);
      default: break;
    }
  }
  visit_floating(job.kind, [&](auto type) { apply_to<Formula, Function, decltype(type)>(job, begin, end); });
}

template <template <typename> typename Formula>
constexpr ElementwiseParts parts_of() {
  if constexpr (has_backward<Formula>) {
    return {apply<Formula, Forward<Formula>>, apply<Formula, Backward<Formula>>};
  } else {
    return {apply<Formula, Forward<Formula>>, nullptr};
  }
}

}  // namespace fourfold::cpu::FOURFOLD_CPU_LEVEL
