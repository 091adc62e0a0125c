// The operations of pointwise programs (program/operations.h) for single numbers on a GPU: the device library's elementary
// functions at full precision, and formulas/pointwise.h. Without other includes, like language.cuh.
#pragma once

#include "language.cuh"

namespace fourfold {

using int8 = signed char;
using uint8 = unsigned char;
using int16 = short;
using uint16 = unsigned short;
using int32 = int;
using uint32 = unsigned;
using int64 = long long;
using uint64 = unsigned long long;
using float32 = float;
using float64 = double;

namespace numbers {

template <typename T>
FOURFOLD_FN T select(bool mask, T yes, T no) {
  return mask ? yes : no;
}

// Integers wrap around.
FOURFOLD_FN int32 neg(int32 x) { return static_cast<int32>(0u - static_cast<uint32>(x)); }
FOURFOLD_FN int64 neg(int64 x) { return static_cast<int64>(0ull - static_cast<uint64>(x)); }
FOURFOLD_FN int32 add(int32 a, int32 b) { return static_cast<int32>(static_cast<uint32>(a) + static_cast<uint32>(b)); }
FOURFOLD_FN int64 add(int64 a, int64 b) { return static_cast<int64>(static_cast<uint64>(a) + static_cast<uint64>(b)); }
FOURFOLD_FN int32 sub(int32 a, int32 b) { return static_cast<int32>(static_cast<uint32>(a) - static_cast<uint32>(b)); }
FOURFOLD_FN int64 sub(int64 a, int64 b) { return static_cast<int64>(static_cast<uint64>(a) - static_cast<uint64>(b)); }
FOURFOLD_FN int32 mul(int32 a, int32 b) { return static_cast<int32>(static_cast<uint32>(a) * static_cast<uint32>(b)); }
FOURFOLD_FN int64 mul(int64 a, int64 b) { return static_cast<int64>(static_cast<uint64>(a) * static_cast<uint64>(b)); }
FOURFOLD_FN int32 abs(int32 x) { return x < 0 ? neg(x) : x; }
FOURFOLD_FN int64 abs(int64 x) { return x < 0 ? neg(x) : x; }
FOURFOLD_FN bool bitwise_not(bool x) { return !x; }

FOURFOLD_FN float abs(float x) { return ::fabsf(x); }
FOURFOLD_FN double abs(double x) { return ::fabs(x); }
FOURFOLD_FN float sqrt(float x) { return ::sqrtf(x); }
FOURFOLD_FN double sqrt(double x) { return ::sqrt(x); }
FOURFOLD_FN float rsqrt(float x) { return ::rsqrtf(x); }
FOURFOLD_FN double rsqrt(double x) { return ::rsqrt(x); }
FOURFOLD_FN float floor(float x) { return ::floorf(x); }
FOURFOLD_FN double floor(double x) { return ::floor(x); }
FOURFOLD_FN float ceil(float x) { return ::ceilf(x); }
FOURFOLD_FN double ceil(double x) { return ::ceil(x); }
FOURFOLD_FN float trunc(float x) { return ::truncf(x); }
FOURFOLD_FN double trunc(double x) { return ::trunc(x); }
FOURFOLD_FN float round(float x) { return ::rintf(x); }  // to even
FOURFOLD_FN double round(double x) { return ::rint(x); }
FOURFOLD_FN float copysign(float x, float sign) { return ::copysignf(x, sign); }
FOURFOLD_FN double copysign(double x, double sign) { return ::copysign(x, sign); }
FOURFOLD_FN float fmod(float a, float b) { return ::fmodf(a, b); }
FOURFOLD_FN double fmod(double a, double b) { return ::fmod(a, b); }

FOURFOLD_FN float pow(float x, float y) { return ::powf(x, y); }
FOURFOLD_FN double pow(double x, double y) { return ::pow(x, y); }
FOURFOLD_FN float atan2(float y, float x) { return ::atan2f(y, x); }
FOURFOLD_FN double atan2(double y, double x) { return ::atan2(y, x); }
FOURFOLD_FN float exp(float x) { return ::expf(x); }
FOURFOLD_FN double exp(double x) { return ::exp(x); }
FOURFOLD_FN float exp2(float x) { return ::exp2f(x); }
FOURFOLD_FN double exp2(double x) { return ::exp2(x); }
FOURFOLD_FN float expm1(float x) { return ::expm1f(x); }
FOURFOLD_FN double expm1(double x) { return ::expm1(x); }
FOURFOLD_FN float log(float x) { return ::logf(x); }
FOURFOLD_FN double log(double x) { return ::log(x); }
FOURFOLD_FN float log2(float x) { return ::log2f(x); }
FOURFOLD_FN double log2(double x) { return ::log2(x); }
FOURFOLD_FN float log10(float x) { return ::log10f(x); }
FOURFOLD_FN double log10(double x) { return ::log10(x); }
FOURFOLD_FN float log1p(float x) { return ::log1pf(x); }
FOURFOLD_FN double log1p(double x) { return ::log1p(x); }
FOURFOLD_FN float sin(float x) { return ::sinf(x); }
FOURFOLD_FN double sin(double x) { return ::sin(x); }
FOURFOLD_FN float cos(float x) { return ::cosf(x); }
FOURFOLD_FN double cos(double x) { return ::cos(x); }
FOURFOLD_FN float tan(float x) { return ::tanf(x); }
FOURFOLD_FN double tan(double x) { return ::tan(x); }
FOURFOLD_FN float asin(float x) { return ::asinf(x); }
FOURFOLD_FN double asin(double x) { return ::asin(x); }
FOURFOLD_FN float acos(float x) { return ::acosf(x); }
FOURFOLD_FN double acos(double x) { return ::acos(x); }
FOURFOLD_FN float atan(float x) { return ::atanf(x); }
FOURFOLD_FN double atan(double x) { return ::atan(x); }
FOURFOLD_FN float sinh(float x) { return ::sinhf(x); }
FOURFOLD_FN double sinh(double x) { return ::sinh(x); }
FOURFOLD_FN float cosh(float x) { return ::coshf(x); }
FOURFOLD_FN double cosh(double x) { return ::cosh(x); }
FOURFOLD_FN float tanh(float x) { return ::tanhf(x); }
FOURFOLD_FN double tanh(double x) { return ::tanh(x); }
FOURFOLD_FN float asinh(float x) { return ::asinhf(x); }
FOURFOLD_FN double asinh(double x) { return ::asinh(x); }
FOURFOLD_FN float acosh(float x) { return ::acoshf(x); }
FOURFOLD_FN double acosh(double x) { return ::acosh(x); }
FOURFOLD_FN float atanh(float x) { return ::atanhf(x); }
FOURFOLD_FN double atanh(double x) { return ::atanh(x); }
FOURFOLD_FN float erf(float x) { return ::erff(x); }
FOURFOLD_FN double erf(double x) { return ::erf(x); }
FOURFOLD_FN float erfc(float x) { return ::erfcf(x); }
FOURFOLD_FN double erfc(double x) { return ::erfc(x); }

template <typename T>
FOURFOLD_FN T sigmoid(T x) {
  return T(1) / (T(1) + exp(-x));
}

#include "formulas/pointwise.h"
#include "formulas/conversions.h"

template <typename T>
FOURFOLD_FN float64 to_float64(T x) { return float64(x); }
FOURFOLD_FN float32 to_float16(float32 x) { return gpu::float_of_half(gpu::half_bits(x)); }
FOURFOLD_FN float32 to_bfloat16(float32 x) { return gpu::float_of_bfloat(gpu::bfloat_bits(x)); }

// The value of the lane whose index differs by xor with `distance`, 1 to 16.
template <typename T>
FOURFOLD_FN T exchange(T x, int distance) { return gpu::from_lane_across(x, distance); }
FOURFOLD_FN bool exchange(bool x, int distance) { return gpu::from_lane_across(static_cast<int>(x), distance) != 0; }

}  // namespace numbers
}  // namespace fourfold
