// Loads and stores between memory of type T and vectors of its compute type: float for bfloat16 and float16. Included
// only by files that are compiled once per CPU level; everything is in that level's namespace.
#pragma once

#include <ATen/cpu/vec/vec.h>

#include <cstdint>
#include <type_traits>

#include "ops/kind.h"

// A call inside a loop over vectors would spill the vector registers.
#define FOURFOLD_FN inline __attribute__((always_inline))
#define FOURFOLD_CONSTANT static constexpr

namespace fourfold::cpu::FOURFOLD_CPU_LEVEL {

using at::vec::Vectorized;

template <typename T>
using Compute = std::conditional_t<std::is_same_v<T, double>, double, float>;

template <typename T>
using Vec = Vectorized<Compute<T>>;

#if defined(CPU_CAPABILITY_AVX512)
// The mask of the first `count` of 16 lanes.
FOURFOLD_FN __mmask16 first_lanes(int64_t count) { return static_cast<__mmask16>((1u << count) - 1); }
#endif

// A step is one register of T, and one or two vectors of its compute type.
template <typename T>
inline constexpr int64_t step_size = Vectorized<T>::size();
template <typename T>
inline constexpr int parts = step_size<T> / Vec<T>::size();

template <typename T>
struct Step {
  Vec<T> part[parts<T>];
};

template <typename T>
Step<T> widened(const Vectorized<T>& v) {
  if constexpr (std::is_same_v<T, c10::BFloat16>) {
    const auto [low, high] = at::vec::convert_bfloat16_float(v);
    return {low, high};
  } else if constexpr (std::is_same_v<T, c10::Half>) {
    const auto [low, high] = at::vec::convert_half_float(v);
    return {low, high};
  } else {
    return {v};
  }
}

template <typename T>
Vectorized<T> narrowed(const Step<T>& step) {
  if constexpr (std::is_same_v<T, c10::BFloat16>) {
    return at::vec::convert_float_bfloat16(step.part[0], step.part[1]);
  } else if constexpr (std::is_same_v<T, c10::Half>) {
    return at::vec::convert_float_half(step.part[0], step.part[1]);
  } else {
    return step.part[0];
  }
}

// Loads `count` elements, at most one step; other lanes are zero.
template <typename T>
Step<T> load(const T* from, int64_t count) {
  return widened(count == step_size<T> ? Vectorized<T>::loadu(from) : Vectorized<T>::loadu(from, count));
}

template <typename T>
void store(T* to, const Step<T>& step, int64_t count) {
  if (count == step_size<T>) {
    narrowed(step).store(to);
  } else {
    narrowed(step).store(to, static_cast<int>(count));
  }
}

// Contiguous elements, or, with stride 0, one for all.
template <typename T>
struct Elements {
  const T* data;
  int64_t stride;
};

// to[k] = f(in_0[k], in_1[k], …) for n elements. Inlined, so that f's captures stay in registers.
template <typename T, typename F, typename... Inputs>
FOURFOLD_FN void map(int64_t n, T* to, const F& f, const Inputs&... in) {
  const auto apply = [&](const auto&... steps) {
    Step<T> result;
    for (int p = 0; p < parts<T>; ++p) result.part[p] = f(steps.part[p]...);
    return result;
  };
  int64_t k = 0;
  if ((... && (in.stride == 1))) {
#pragma GCC unroll 4
    for (; k + step_size<T> <= n; k += step_size<T>) {
      narrowed(apply(widened(Vectorized<T>::loadu(in.data + k))...)).store(to + k);
    }
    if (k < n) store(to + k, apply(load(in.data + k, n - k)...), n - k);
    return;
  }
  const auto at = [&k](const Elements<T>& one, const Vectorized<T>& all) {
    return widened(one.stride == 0 ? all : Vectorized<T>::loadu(one.data + k));
  };
  const auto map_steps = [&](const auto&... all) {
    for (; k + step_size<T> <= n; k += step_size<T>) narrowed(apply(at(in, all)...)).store(to + k);
    const auto rest = [&](const Elements<T>& one, const Vectorized<T>& all) {
      return one.stride == 0 ? widened(all) : load(one.data + k, n - k);
    };
    if (k < n) store(to + k, apply(rest(in, all)...), n - k);
  };
  map_steps(Vectorized<T>(*in.data)...);
}

// Calls f(T()) with the floating-point type of `kind`.
template <typename F>
void visit_floating(Kind kind, const F& f) {
  switch (kind) {
    case Kind::float64: return f(double());
    case Kind::float32: return f(float());
    case Kind::bfloat16: return f(c10::BFloat16());
    default: return f(c10::Half());
  }
}

// The same for the compute types float64 and float32.
template <typename F>
void visit_compute(Kind kind, const F& f) {
  kind == Kind::float64 ? f(double()) : f(float());
}

}  // namespace fourfold::cpu::FOURFOLD_CPU_LEVEL
