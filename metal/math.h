// The surroundings that cpp/formulas/ need in Metal's language. What is precise keeps NaN and infinities.
#pragma once

#include <metal_stdlib>

#define FOURFOLD_FN inline
#define FOURFOLD_CONSTANT static constant constexpr const

namespace fourfold {

inline float abs(float x) { return metal::fabs(x); }
inline float exp(float x) { return metal::precise::exp(x); }
inline float fma(float a, float b, float c) { return metal::fma(a, b, c); }
inline float tanh(float x) { return metal::precise::tanh(x); }

// Metal has none. From tanh(x/2), which keeps its relative error near zero; for large x it would lose what exp keeps.
inline float expm1(float x) {
  const float t = tanh(0.5f * x);
  return x > 0.5f ? exp(x) - 1.0f : 2.0f * t / (1.0f - t);
}

template <typename T>
inline T sigmoid(T x) {
  return T(1) / (T(1) + exp(-x));
}

template <typename T>
inline T select(bool mask, T yes, T no) {
  return mask ? yes : no;
}

}  // namespace fourfold
