// Reductions along the columns, for primitives and for programs in C++: each block's part is combined with what its row
// has so far. In which order elements are taken depends on the level and on how many there are, and on nothing else.
#pragma once

#include <limits>

#include "cpu/kernels/operations.h"
#include "cpu/kernels/primitives.h"

namespace fourfold::cpu::FOURFOLD_CPU_LEVEL {

struct Sum {
  template <typename T>
  static FOURFOLD_FN T of(T a, T b) { return a + b; }
  template <typename T>
  static constexpr T identity() { return T(0); }
};

struct Prod {
  template <typename T>
  static FOURFOLD_FN T of(T a, T b) { return a * b; }
  template <typename T>
  static constexpr T identity() { return T(1); }
};

struct Amax {
  template <typename T>
  static FOURFOLD_FN T of(T a, T b) { return op::maximum(a, b); }
  template <typename T>
  static constexpr T identity() {
    return std::is_floating_point_v<T> ? -std::numeric_limits<T>::infinity() : std::numeric_limits<T>::lowest();
  }
};

struct Amin {
  template <typename T>
  static FOURFOLD_FN T of(T a, T b) { return op::minimum(a, b); }
  template <typename T>
  static constexpr T identity() {
    return std::is_floating_point_v<T> ? std::numeric_limits<T>::infinity() : std::numeric_limits<T>::max();
  }
};

struct All {
  template <typename T>
  static FOURFOLD_FN T of(T a, T b) { return a & b; }
  template <typename T>
  static constexpr T identity() { return T(1); }
};

struct Any {
  template <typename T>
  static FOURFOLD_FN T of(T a, T b) { return a | b; }
  template <typename T>
  static constexpr T identity() { return T(0); }
};

// float32 is summed in float32 for no more than a block, whose sums are added up in float64.
template <typename T, typename R>
using Accumulator =
    std::conditional_t<std::is_same_v<T, float> && (std::is_same_v<R, Sum> || std::is_same_v<R, Prod>), double, T>;

template <typename R, typename T>
inline auto reduce_vectors(const T* from, int64_t n) {
  using V = Vectorized<T>;
  constexpr int64_t size = V::size();
  const V identity(R::template identity<T>());
  V a = identity, b = identity, c = identity, d = identity;
  int64_t k = 0;
  for (; k + 4 * size <= n; k += 4 * size) {
    a = R::of(a, V::loadu(from + k));
    b = R::of(b, V::loadu(from + k + size));
    c = R::of(c, V::loadu(from + k + 2 * size));
    d = R::of(d, V::loadu(from + k + 3 * size));
  }
  for (; k + size <= n; k += size) a = R::of(a, V::loadu(from + k));
  if (k < n) b = R::of(b, V::set(identity, V::loadu(from + k, n - k), n - k));
  alignas(64) T lanes[size];
  R::of(R::of(a, b), R::of(c, d)).store(lanes);
  using A = Accumulator<T, R>;
  A result = lanes[0];
  for (int64_t l = 1; l < size; ++l) result = R::of(result, static_cast<A>(lanes[l]));
  return result;
}

template <typename R, typename T>
inline auto reduce_numbers(const T* from, int64_t n) {
  using A = Accumulator<T, R>;
  A result = R::template identity<A>();
  for (int64_t k = 0; k < n; ++k) result = static_cast<A>(R::of(result, static_cast<A>(from[k])));
  return result;
}

// Integers in unsigned arithmetic, which wraps around.
template <typename R, typename T>
inline auto reduce(const T* from, int64_t n) {
  constexpr bool adds_up = std::is_same_v<R, Sum> || std::is_same_v<R, Prod>;
  if constexpr (std::is_floating_point_v<T> && !std::is_same_v<R, Prod>) {
    return reduce_vectors<R>(from, n);
  } else if constexpr (adds_up && std::is_integral_v<T>) {
    using Unsigned = std::make_unsigned_t<T>;
    return static_cast<T>(reduce_numbers<R>(reinterpret_cast<const Unsigned*>(from), n));
  } else {
    return reduce_numbers<R>(from, n);
  }
}

template <typename R, typename A>
inline A combined(A a, A b) {
  if constexpr (std::is_same_v<A, int32_t> || std::is_same_v<A, int64_t>) {
    if constexpr (std::is_same_v<R, Sum> || std::is_same_v<R, Prod>) {
      using Unsigned = std::make_unsigned_t<A>;
      return static_cast<A>(R::of(static_cast<Unsigned>(a), static_cast<Unsigned>(b)));
    } else {
      return R::of(a, b);
    }
  } else {
    return static_cast<A>(R::of(a, b));
  }
}

// Of each row of a block its columns, with what `out` has so far: an Accumulator for each row.
template <typename R, typename T>
inline void reduce_rows(const Frame& frame, int64_t n, const Slot& in, void* out) {
  using A = Accumulator<T, R>;
  A* to = static_cast<A*>(out);
  const T* from = static_cast<const T*>(in.data);
  constexpr int64_t most = 256;
  T laid_out[most];
  if (in.stride == 0 && n > 0) {
    for (T& value : laid_out) value = *from;
  }
  const int64_t columns = n / frame.rows;
  for (int64_t r = 0; r < frame.rows; ++r) {
    A result = frame.first ? R::template identity<A>() : to[r];
    if (in.stride != 0) {
      result = combined<R, A>(result, reduce<R>(from + r * columns, columns));
    } else {
      for (int64_t k = 0; k < columns; k += most) {
        result = combined<R, A>(result, reduce<R>(laid_out, columns - k < most ? columns - k : most));
      }
    }
    to[r] = result;
  }
}

// Each column's sum over the rows, one row after the other.
template <typename T>
void total_rows(const Frame& frame, int64_t count, const Slot& of, double* to) {
  const T* from = static_cast<const T*>(of.data);
  for (int64_t r = 0; r < frame.rows && count > 0; ++r) {
    const T* const row = from + r * frame.columns * of.stride;
    if (of.stride == 0) {
      for (int64_t c = 0; c < frame.columns; ++c) to[c] += static_cast<double>(*row);
    } else {
      for (int64_t c = 0; c < frame.columns; ++c) to[c] += static_cast<double>(row[c]);
    }
  }
}

}  // namespace fourfold::cpu::FOURFOLD_CPU_LEVEL
