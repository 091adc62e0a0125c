// The conversions of pointwise programs (program/operations.h) for single numbers. The including file defines
// to_float16 and to_bfloat16.

template <typename T>
FOURFOLD_FN bool to_boolean(T x) { return x != T(0); }
template <typename T>
FOURFOLD_FN int32 to_int32(T x) { return int32(x); }
template <typename T>
FOURFOLD_FN int64 to_int64(T x) { return int64(x); }
template <typename T>
FOURFOLD_FN float32 to_float32(T x) { return float32(x); }
FOURFOLD_FN int32 to_int8(int32 x) { return int32(int8(x)); }
FOURFOLD_FN int32 to_uint8(int32 x) { return int32(uint8(x)); }
FOURFOLD_FN int32 to_int16(int32 x) { return int32(int16(x)); }
