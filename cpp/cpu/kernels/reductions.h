// Reductions along the columns: each block's result is combined with the row's result so far. The order of elements
// depends only on the CPU level and on their number.
#pragma once

#include <iterator>
#include <limits>

#include "cpu/kernels/operations.h"
#include "cpu/kernels/primitives.h"
#include "cpu/kernels/transpose.h"

namespace fourfold::cpu::FOURFOLD_CPU_LEVEL {

struct Sum {
  template <typename T>
  static FOURFOLD_FN T of(T a, T b) { return a + b; }
  template <typename T>
  static constexpr T identity() { return T(0); }
};

// The exact sum of equal numbers.
struct WideSum : Sum {};

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

// float32 is accumulated in float32 within a block; the blocks' sums are accumulated in float64.
template <typename T, typename R>
using Accumulator =
    std::conditional_t<std::is_same_v<T, float> && (std::is_base_of_v<Sum, R> || std::is_same_v<R, Prod>), double, T>;

// Reduces the lanes by halving, into lanes[0].
template <typename R, int count, typename A>
FOURFOLD_FN void fold(A* lanes) {
  if constexpr (count > 1) {
    for (int l = 0; l < count / 2; ++l) lanes[l] = R::of(lanes[l], lanes[l + count / 2]);
    fold<R, count / 2>(lanes);
  }
}

// A chain of partial results, with as many lanes as a vector of float.
template <typename T>
struct Chain {
  static constexpr int64_t lanes = Vectorized<float>::size();
  static constexpr int64_t size = Vectorized<T>::size();
  Vectorized<T> part[lanes / size];
};

template <typename R, typename T>
FOURFOLD_FN void add(Chain<T>& to, const T* from) {
  for (auto& part : to.part) part = R::of(part, Vectorized<T>::loadu(from + (&part - to.part) * Chain<T>::size));
}

template <typename R, typename T>
FOURFOLD_FN void add(Chain<T>& to, const T* from, int64_t count) {
  const Vectorized<T> identity(R::template identity<T>());
  for (auto& part : to.part) {
    const int64_t left = count - (&part - to.part) * Chain<T>::size;
    if (left >= Chain<T>::size) {
      part = R::of(part, Vectorized<T>::loadu(from + count - left));
    } else if (left > 0) {
      part = R::of(part, Vectorized<T>::set(identity, Vectorized<T>::loadu(from + count - left, left), left));
    }
  }
}

// Reduces a row to lanes. Four chains take whole groups of elements in turn; the fourth one takes the remainder. Loop
// nests (compiler/nest) reduce in the same order.
template <typename R, typename T>
FOURFOLD_FN Chain<T> reduced_lanes(const T* from, int64_t n) {
  constexpr int64_t lanes = Chain<T>::lanes;
  Chain<T> a;
  for (auto& part : a.part) part = Vectorized<T>(R::template identity<T>());
  Chain<T> b = a, c = a, d = a;
  int64_t k = 0;
  for (; k + 4 * lanes <= n; k += 4 * lanes) {
    add<R>(a, from + k);
    add<R>(b, from + k + lanes);
    add<R>(c, from + k + 2 * lanes);
    add<R>(d, from + k + 3 * lanes);
  }
  if (k + lanes <= n) add<R>(a, from + k), k += lanes;
  if (k + lanes <= n) add<R>(b, from + k), k += lanes;
  if (k + lanes <= n) add<R>(c, from + k), k += lanes;
  if (k < n) add<R>(d, from + k, n - k);
  for (size_t p = 0; p < std::size(a.part); ++p) {
    a.part[p] = R::of(R::of(a.part[p], b.part[p]), R::of(c.part[p], d.part[p]));
  }
  return a;
}

// Reduces the lanes of one row by halving.
template <typename R, typename A, typename T>
FOURFOLD_FN A folded(const Vectorized<T>& v) {
  constexpr int size = Vectorized<T>::size();
  alignas(64) T lanes[size];
  v.store(lanes);
  alignas(64) A exact[size];
  for (int l = 0; l < size; ++l) exact[l] = lanes[l];
  fold<R, size>(exact);
  return exact[0];
}

#if defined(CPU_CAPABILITY_AVX512)
FOURFOLD_FN Chain<double> widened(const Floats& v) {
  return {{_mm512_cvtps_pd(_mm512_castps512_ps256(v)), _mm512_cvtps_pd(_mm512_extractf32x8_ps(v, 1))}};
}

template <typename R>
FOURFOLD_FN float folded_in_place(Floats v) {
  v = R::of(v, Floats(_mm512_shuffle_f32x4(v, v, 0x4e)));
  v = R::of(v, Floats(_mm512_shuffle_f32x4(v, v, 0xb1)));
  v = R::of(v, Floats(_mm512_shuffle_ps(v, v, 0x4e)));
  v = R::of(v, Floats(_mm512_shuffle_ps(v, v, 0xb1)));
  return _mm512_cvtss_f32(v);
}
#elif defined(CPU_CAPABILITY_AVX2)
FOURFOLD_FN Chain<double> widened(const Floats& v) {
  return {{_mm256_cvtps_pd(_mm256_castps256_ps128(v)), _mm256_cvtps_pd(_mm256_extractf128_ps(v, 1))}};
}

template <typename R>
FOURFOLD_FN float folded_in_place(Floats v) {
  v = R::of(v, Floats(_mm256_permute2f128_ps(v, v, 1)));
  v = R::of(v, Floats(_mm256_shuffle_ps(v, v, 0x4e)));
  v = R::of(v, Floats(_mm256_shuffle_ps(v, v, 0xb1)));
  return _mm256_cvtss_f32(v);
}
#else
FOURFOLD_FN Chain<double> widened(const Floats& v) {
  float lanes[Floats::size()];
  double wide[Floats::size()];
  v.store(lanes);
  for (int l = 0; l < Floats::size(); ++l) wide[l] = lanes[l];
  return {{Vectorized<double>::loadu(wide), Vectorized<double>::loadu(wide + Chain<double>::size)}};
}

template <typename R>
FOURFOLD_FN float folded_in_place(const Floats& v) { return folded<R, float>(v); }
#endif

template <typename R>
FOURFOLD_FN double folded(const Chain<double>& lanes) {
  return folded<R, double>(Vectorized<double>(R::of(lanes.part[0], lanes.part[1])));
}

// The sum of a row in float64. Four vectors at a time are added in float32, by pairs, so that equal numbers add up
// exactly, and a quarter of them, which doesn't overflow.
inline double wide_sum(const float* from, int64_t n) {
  constexpr int64_t lanes = Floats::size();
  const auto quarter = [from](int64_t k) { return Floats::loadu(from + k) * Floats(0.25f); };
  Chain<double> sum{{Vectorized<double>(0.0), Vectorized<double>(0.0)}};
  const auto add_up = [&sum](const Floats& v) {
    const Chain<double> wide = widened(v);
    for (int p = 0; p < 2; ++p) sum.part[p] = sum.part[p] + wide.part[p];
  };
  int64_t k = 0;
  for (; k + 4 * lanes <= n; k += 4 * lanes) {
    add_up((quarter(k) + quarter(k + lanes)) + (quarter(k + 2 * lanes) + quarter(k + 3 * lanes)));
  }
  for (; k + lanes <= n; k += lanes) add_up(quarter(k));
  if (k < n) add_up(Floats::set(Floats(0.0f), Floats::loadu(from + k, n - k), n - k) * Floats(0.25f));
  return 4 * folded<Sum>(sum);
}

template <typename R, typename T>
inline auto reduce_vectors(const T* from, int64_t n) {
  if constexpr (std::is_same_v<R, WideSum>) {
    return wide_sum(from, n);
  } else if constexpr (std::is_same_v<T, double>) {
    return folded<R>(reduced_lanes<R>(from, n));
  } else if constexpr (std::is_same_v<Accumulator<T, R>, double>) {
    return folded<R>(widened(reduced_lanes<R>(from, n).part[0]));
  } else {
    return folded_in_place<R>(reduced_lanes<R>(from, n).part[0]);
  }
}

#if defined(CPU_CAPABILITY_AVX512) || defined(CPU_CAPABILITY_AVX2)
FOURFOLD_FN void transpose_lanes(const float* from, float* to) {
#if defined(CPU_CAPABILITY_AVX512)
  transpose_16(from, 16 * sizeof(float), to, 16);
#else
  transpose_8(from, 8, to, 8);
#endif
}

template <typename A>
FOURFOLD_FN Vectorized<A> exact_lanes(const float* from) {
  if constexpr (std::is_same_v<A, float>) {
    return Floats::loadu(from);
  } else {
#if defined(CPU_CAPABILITY_AVX512)
    return _mm512_cvtps_pd(_mm256_loadu_ps(from));
#else
    return _mm256_cvtps_pd(_mm_loadu_ps(from));
#endif
  }
}

// The same for as many rows as a vector has lanes, `columns` apart; their lanes are reduced together.
template <typename R>
inline void reduce_side_by_side(const float* from, int64_t columns, bool first, Accumulator<float, R>* to) {
  constexpr int size = Floats::size();
  using A = Accumulator<float, R>;
  alignas(64) float rows[size * size];
  alignas(64) float lanes[size * size];
  for (int r = 0; r < size; ++r) reduced_lanes<R>(from + r * columns, columns).part[0].store(rows + r * size);
  transpose_lanes(rows, lanes);
  using V = Vectorized<A>;
  V exact[size];
  for (int part = 0; part < size / V::size(); ++part) {
    A* const own = to + part * V::size();
    for (int l = 0; l < size; ++l) exact[l] = exact_lanes<A>(lanes + l * size + part * V::size());
    fold<R, size>(exact);
    V(R::of(first ? V(R::template identity<A>()) : V::loadu(own), exact[0])).store(own);
  }
}
#endif

template <typename R, typename T>
inline auto reduce_numbers(const T* from, int64_t n) {
  using A = Accumulator<T, R>;
  A result = R::template identity<A>();
  for (int64_t k = 0; k < n; ++k) result = static_cast<A>(R::of(result, static_cast<A>(from[k])));
  return result;
}

// Integers are summed in unsigned arithmetic, which wraps around.
template <typename R, typename T>
inline auto reduce(const T* from, int64_t n) {
  constexpr bool adds_up = std::is_same_v<R, Sum> || std::is_same_v<R, Prod>;
  if constexpr (std::is_floating_point_v<T>) {
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

// Reduces the columns of each row of a block into `out`, an Accumulator for each row.
template <typename R, typename T>
inline void reduce_rows(const Frame& frame, int64_t n, const Slot& in, void* out) {
  using A = Accumulator<T, R>;
  A* to = static_cast<A*>(out);
  const T* from = static_cast<const T*>(in.data);
  T laid_out[most_elements];
  if (in.stride == 0 && n > 0) {
    for (T& value : laid_out) value = *from;
  }
  const int64_t columns = n / frame.rows;
  int64_t r = 0;
#if defined(CPU_CAPABILITY_AVX512) || defined(CPU_CAPABILITY_AVX2)
  if constexpr (std::is_same_v<T, float> && !std::is_same_v<R, WideSum>) {
    for (; in.stride != 0 && r + Floats::size() <= frame.rows; r += Floats::size()) {
      reduce_side_by_side<R>(from + r * columns, columns, frame.first, to + r);
    }
  }
#endif
  for (; r < frame.rows; ++r) {
    A result = frame.first ? R::template identity<A>() : to[r];
    if (in.stride != 0) {
      result = combined<R, A>(result, reduce<R>(from + r * columns, columns));
    } else {
      result = combined<R, A>(result, reduce<R>(laid_out, columns));
    }
    to[r] = result;
  }
}

// Adds the rows of a block to each column's sum, one row after the other.
template <typename T>
void add_rows(const Frame& frame, int64_t count, const Slot& of, double* to) {
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
