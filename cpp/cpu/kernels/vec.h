// Loads and stores between memory of type T and vectors of the type it is computed in: float for bfloat16 and float16.
// Included only by files that are compiled once a level; everything stands in that level's namespace.
#pragma once

#include <ATen/cpu/vec/vec.h>

#include <cstdint>
#include <type_traits>

#include "cpu/kernels/strided.h"

// A call inside a loop over vectors would spill the registers that hold them.
#define FOURFOLD_FN inline __attribute__((always_inline))

namespace fourfold::cpu::FOURFOLD_CPU_LEVEL {

using at::vec::Vectorized;

template <typename T>
using Compute = std::conditional_t<std::is_same_v<T, double>, double, float>;

template <typename T>
using Vec = Vectorized<Compute<T>>;

// A step is one register of T, which is one or two vectors of its compute type.
template <typename T>
inline constexpr int64_t step_size = Vectorized<T>::size();
template <typename T>
inline constexpr int parts = step_size<T> / Vec<T>::size();

template <typename T>
struct Step {
  Vec<T> part[parts<T>];
};

template <typename T>
Step<T> unpack(const Vectorized<T>& v) {
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
Vectorized<T> pack(const Step<T>& step) {
  if constexpr (std::is_same_v<T, c10::BFloat16>) {
    return at::vec::convert_float_bfloat16(step.part[0], step.part[1]);
  } else if constexpr (std::is_same_v<T, c10::Half>) {
    return at::vec::convert_float_half(step.part[0], step.part[1]);
  } else {
    return step.part[0];
  }
}

// `count` elements, at most a step; what lies beyond is zero in the vector.
template <typename T>
Step<T> load(const T* from, int64_t stride, int64_t count) {
  if (stride == 1) {
    return unpack(count == step_size<T> ? Vectorized<T>::loadu(from) : Vectorized<T>::loadu(from, count));
  }
  if (stride == 0) return unpack(Vectorized<T>(*from));
  alignas(64) T gathered[step_size<T>] = {};
  for (int64_t k = 0; k < count; ++k) gathered[k] = from[k * stride];
  return unpack(Vectorized<T>::loadu(gathered));
}

template <typename T>
void store(T* to, const Step<T>& step, int64_t count) {
  if (count == step_size<T>) {
    pack(step).store(to);
  } else {
    pack(step).store(to, static_cast<int>(count));
  }
}

// out[k] = f(in_0[k], in_1[k], …) over n elements; `out` is contiguous, each input has its own stride.
template <typename T, typename F, typename... Inputs>
void map(int64_t n, void* out, const F& f, const Inputs&... inputs) {
  T* to = static_cast<T*>(out);
  const auto apply = [&](const auto&... steps) {
    Step<T> result;
    for (int p = 0; p < parts<T>; ++p) result.part[p] = f(steps.part[p]...);
    return result;
  };
  int64_t k = 0;
  if ((... && (inputs.stride == 1))) {  // then no step need ask how its inputs lie, or how much of it there is
#pragma GCC unroll 4
    for (; k + step_size<T> <= n; k += step_size<T>) {
      pack(apply(unpack(Vectorized<T>::loadu(static_cast<const T*>(inputs.data) + k))...)).store(to + k);
    }
  }
  for (; k < n; k += step_size<T>) {
    const int64_t count = n - k < step_size<T> ? n - k : step_size<T>;
    store(to + k, apply(load(static_cast<const T*>(inputs.data) + k * inputs.stride, inputs.stride, count)...), count);
  }
}

// Calls f(T()) with the floating point type that `kind` names.
template <typename F>
void visit_floating(Kind kind, const F& f) {
  switch (kind) {
    case Kind::float64: return f(double());
    case Kind::float32: return f(float());
    case Kind::bfloat16: return f(c10::BFloat16());
    default: return f(c10::Half());
  }
}

}  // namespace fourfold::cpu::FOURFOLD_CPU_LEVEL
