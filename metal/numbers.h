// The operations of pointwise programs (program/operations.h) for single numbers in Metal's language, which has no
// float64: Metal's precise functions, which preserve NaN and infinities; float_functions.h and erf.h for those that
// Metal lacks; and formulas/pointwise.h.
#pragma once

#include <metal_stdlib>

#define FOURFOLD_FN inline
#define FOURFOLD_CONSTANT static constant constexpr const

namespace fourfold {

typedef char int8;
typedef uchar uint8;
typedef short int16;
typedef ushort uint16;
typedef int int32;
typedef uint uint32;
typedef long int64;
typedef ulong uint64;
typedef half float16;
typedef bfloat bfloat16;
typedef float float32;

template <typename To, typename From>
inline To as_bits(From x) { return as_type<To>(x); }
template <typename To, typename From>
inline To of_bits(From x) { return as_type<To>(x); }
inline uint16 half_bits(float32 x) { return as_type<uint16>(float16(x)); }
inline float32 float_of_half(uint16 bits) { return float32(as_type<float16>(bits)); }
inline uint16 bfloat_bits(float32 x) { return as_type<uint16>(bfloat16(x)); }
inline float32 float_of_bfloat(uint16 bits) { return float32(as_type<bfloat16>(bits)); }

namespace numbers {

template <typename T>
inline T select(bool mask, T yes, T no) { return mask ? yes : no; }

// Integers wrap around.
inline int32 neg(int32 x) { return int32(0u - uint32(x)); }
inline int64 neg(int64 x) { return int64(uint64(0) - uint64(x)); }
inline int32 add(int32 a, int32 b) { return int32(uint32(a) + uint32(b)); }
inline int64 add(int64 a, int64 b) { return int64(uint64(a) + uint64(b)); }
inline int32 sub(int32 a, int32 b) { return int32(uint32(a) - uint32(b)); }
inline int64 sub(int64 a, int64 b) { return int64(uint64(a) - uint64(b)); }
inline int32 mul(int32 a, int32 b) { return int32(uint32(a) * uint32(b)); }
inline int64 mul(int64 a, int64 b) { return int64(uint64(a) * uint64(b)); }
inline int32 abs(int32 x) { return x < 0 ? neg(x) : x; }
inline int64 abs(int64 x) { return x < 0 ? neg(x) : x; }
inline bool bitwise_not(bool x) { return !x; }

inline float abs(float x) { return metal::fabs(x); }
inline float fma(float a, float b, float c) { return metal::fma(a, b, c); }
inline float sqrt(float x) { return metal::precise::sqrt(x); }
inline float rsqrt(float x) { return metal::precise::rsqrt(x); }
inline float floor(float x) { return metal::floor(x); }
inline float ceil(float x) { return metal::ceil(x); }
inline float trunc(float x) { return metal::trunc(x); }
inline float round(float x) { return metal::rint(x); }  // to even
inline float copysign(float x, float sign) { return metal::copysign(x, sign); }
inline float fmod(float a, float b) { return metal::precise::fmod(a, b); }

inline float pow(float x, float y) { return metal::precise::pow(x, y); }
inline float atan2(float y, float x) { return metal::precise::atan2(y, x); }
inline float exp(float x) { return metal::precise::exp(x); }
inline float exp2(float x) { return metal::precise::exp2(x); }
inline float log(float x) { return metal::precise::log(x); }
inline float log2(float x) { return metal::precise::log2(x); }
inline float log10(float x) { return metal::precise::log10(x); }
inline float sin(float x) { return metal::precise::sin(x); }
inline float cos(float x) { return metal::precise::cos(x); }
inline float tan(float x) { return metal::precise::tan(x); }
inline float asin(float x) { return metal::precise::asin(x); }
inline float acos(float x) { return metal::precise::acos(x); }
inline float atan(float x) { return metal::precise::atan(x); }
inline float sinh(float x) { return metal::precise::sinh(x); }
inline float cosh(float x) { return metal::precise::cosh(x); }
inline float tanh(float x) { return metal::precise::tanh(x); }
inline float asinh(float x) { return metal::precise::asinh(x); }
inline float acosh(float x) { return metal::precise::acosh(x); }
inline float atanh(float x) { return metal::precise::atanh(x); }

#include "formulas/erf.h"
#include "formulas/float_functions.h"

inline float expm1(float x) { return expm1_of_float(x); }
inline float log1p(float x) { return log1p_of_float(x); }
inline float erf(float x) { return erf_of_float(x); }
inline float erfc(float x) { return erfc_of_float(x); }

template <typename T>
inline T sigmoid(T x) { return T(1) / (T(1) + exp(-x)); }

#include "formulas/pointwise.h"
#include "formulas/conversions.h"

inline float32 to_float16(float32 x) { return float_of_half(half_bits(x)); }
inline float32 to_bfloat16(float32 x) { return float_of_bfloat(bfloat_bits(x)); }

// The value of the lane whose index differs by xor with `distance`, 1 to 16.
inline int32 exchange(int32 x, int distance) { return metal::simd_shuffle_xor(x, uint16(distance)); }
inline float32 exchange(float32 x, int distance) { return metal::simd_shuffle_xor(x, uint16(distance)); }
inline bool exchange(bool x, int distance) { return exchange(x ? 1 : 0, distance) != 0; }
inline int64 exchange(int64 x, int distance) {
  const uint32 low = uint32(exchange(int32(uint32(x)), distance)), high = uint32(exchange(int32(x >> 32), distance));
  return int64(uint64(low) | uint64(high) << 32);
}

}  // namespace numbers
}  // namespace fourfold
