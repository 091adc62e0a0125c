// The definitions that printed loop nests call. Vectors have N lanes, whatever their type. Integers wrap around and
// nothing is contracted:
#pragma once
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#pragma GCC diagnostic ignored "-Wpsabi"

namespace fourfold {

using int8 = int8_t;
using uint8 = uint8_t;
using int16 = int16_t;
using int32 = int32_t;
using int64 = int64_t;
using float32 = float;
using float64 = double;
typedef int32 int32xN __attribute__((vector_size(4 * N)));
typedef int64 int64xN __attribute__((vector_size(8 * N)));
typedef float32 float32xN __attribute__((vector_size(4 * N)));
typedef float64 float64xN __attribute__((vector_size(8 * N)));
typedef float64 float64xH __attribute__((vector_size(4 * N)));  // a register
using Function = void(int64 begin, int64 end, const int64* arguments, uint8* scratch);

constexpr int lanes = N;
constexpr float32 infinity = __builtin_inff(), nan = __builtin_nanf("");

// The formats in memory of dtypes that are computed in another type.

struct boolean {
  uint8 byte = 0;
  boolean() = default;
  boolean(bool value) : byte(value) {}
  operator bool() const { return byte != 0; }
};

struct float16 {
  uint16_t bits = 0;
  float16() = default;
  float16(float32 value) : bits(_cvtss_sh(value, 0)) {}
  operator float32() const { return _cvtsh_ss(bits); }
};

struct bfloat16 {
  uint16_t bits = 0;
  bfloat16() = default;
  bfloat16(float32 value) {
    const uint32_t own = __builtin_bit_cast(uint32_t, value);
    bits = value != value ? 0x7fc0 : (own + 0x7fff + (own >> 16 & 1)) >> 16;
  }
  operator float32() const { return __builtin_bit_cast(float32, uint32_t(bits) << 16); }
};

// Vectors.

struct boolxN {
  int32xN bits;  // all or none of a lane's
  boolxN() = default;
  boolxN(int32xN bits) : bits(bits) {}
  boolxN(int64xN bits) : bits(__builtin_convertvector(bits, int32xN)) {}
  boolxN(bool every) : bits(int32xN{} - every) {}
  bool operator[](int lane) const { return bits[lane] != 0; }
  friend boolxN operator&(boolxN a, boolxN b) { return a.bits & b.bits; }
  friend boolxN operator|(boolxN a, boolxN b) { return a.bits | b.bits; }
  friend boolxN operator^(boolxN a, boolxN b) { return a.bits ^ b.bits; }
  friend boolxN operator~(boolxN a) { return ~a.bits; }
  friend boolxN operator==(boolxN a, boolxN b) { return a.bits == b.bits; }
  friend boolxN operator!=(boolxN a, boolxN b) { return a.bits != b.bits; }
  friend boolxN operator<(boolxN a, boolxN b) { return a.bits > b.bits; }
  friend boolxN operator<=(boolxN a, boolxN b) { return a.bits >= b.bits; }
  friend boolxN operator>(boolxN a, boolxN b) { return a.bits < b.bits; }
  friend boolxN operator>=(boolxN a, boolxN b) { return a.bits <= b.bits; }
};

template <typename V>
concept vector = sizeof(V) > 8;
template <typename T>
concept scalar = sizeof(T) <= 8;
template <scalar T>
constexpr bool is_floating = T(0.5) != T(0);

inline int32xN splat(int32 x) { return int32xN{} + x; }
inline int64xN splat(int64 x) { return int64xN{} + x; }
inline float32xN splat(float32 x) { return x - float32xN{}; }
inline float64xN splat(float64 x) { return x - float64xN{}; }
inline boolxN splat(bool x) { return boolxN(x); }

// The first lanes, as many as count.
inline boolxN first(int64 count) {
  int32xN bits{};
  for (int l = 0; l < lanes; ++l) bits[l] = -(l < count);
  return bits;
}

template <vector V>
V where(boolxN mask, V a, V b) {
  if constexpr (sizeof(V) > sizeof mask) {
    return __builtin_convertvector(mask.bits, int64xN) ? a : b;
  } else {
    return mask.bits ? a : b;
  }
}
inline boolxN where(boolxN mask, boolxN a, boolxN b) { return (mask & a) | (~mask & b); }

template <typename F, vector V, typename... Vs>
V each(F f, V a, Vs... others) {
  V result;
  for (int l = 0; l < lanes; ++l) result[l] = f(a[l], others[l]...);
  return result;
}

// Memory.

int32xN vector_of(int8);
int32xN vector_of(uint8);
int32xN vector_of(int16);
int32xN vector_of(int32);
int64xN vector_of(int64);
float32xN vector_of(float16);
float32xN vector_of(bfloat16);
float32xN vector_of(float32);
float64xN vector_of(float64);
boolxN vector_of(boolean);
template <typename Kind>
using Vector = decltype(vector_of(Kind()));

template <typename V, typename T>
void set(V& v, int lane, T value) { v[lane] = value; }
template <typename T>
void set(boolxN& v, int lane, T value) { v.bits[lane] = -bool(value); }

template <typename Kind>
Vector<Kind> load_strided(const Kind* from, int64 stride, boolxN mask = true) {
  Vector<Kind> result{};
  for (int l = 0; l < lanes; ++l) {
    if (mask[l]) set(result, l, from[l * stride]);
  }
  return result;
}

template <typename Kind>
Vector<Kind> load(const Kind* from, boolxN mask) { return load_strided(from, 1, mask); }

template <typename Kind>
Vector<Kind> load(const Kind* from) {
  if constexpr (sizeof(Vector<Kind>) > lanes * sizeof(Kind) || sizeof(Kind) < 4) return load_strided(from, 1);
  Vector<Kind> result;
  memcpy(&result, from, sizeof result);
  return result;
}

template <typename Kind, typename V>
void store_strided(Kind* to, int64 stride, V value, boolxN mask = true) {
  for (int l = 0; l < lanes; ++l) {
    if (mask[l]) to[l * stride] = value[l];
  }
}

template <typename Kind, typename V>
void store(Kind* to, V value, boolxN mask) { store_strided(to, 1, value, mask); }

template <typename Kind, typename V>
void store(Kind* to, V value) {
  if constexpr (sizeof value > lanes * sizeof *to || sizeof *to < 4) return store_strided(to, 1, value);
  memcpy(to, &value, sizeof value);
}

// A non-temporal store, for data that is not read soon.
template <typename Kind, typename V>
void stream(Kind* to, V value) {
#if defined(__clang__)
  __builtin_nontemporal_store(value, (V*)to);
#else
  store(to, value);
#endif
}

// Fetches a cache line ahead of its use. The address may lie behind the tensor.
inline void prefetch(const void* from) { __builtin_prefetch(from); }

// Writes the transpose of a matrix.
template <typename Kind>
void transpose(Kind* to, int64 to_step, const Kind* source, int64 source_step, int64 rows, int64 columns) {
  for (int64 r = 0; r < rows; ++r) {
    for (int64 c = 0; c < columns; ++c) to[r * to_step + c] = source[c * source_step + r];
  }
}

// Conversions: to a type, or to the values that a narrower kind can hold.

inline int32xN number(boolxN x) { return -x.bits; }
template <typename V>
V number(V x) { return x; }

template <scalar T>
bool to_boolean(T x) { return x != T(0); }
template <scalar T>
int32 to_int32(T x) { return int32(x); }
template <scalar T>
int64 to_int64(T x) { return int64(x); }
template <scalar T>
float32 to_float32(T x) { return float32(x); }
template <scalar T>
float64 to_float64(T x) { return float64(x); }
template <vector V>
boolxN to_boolean(V x) { return number(x) != 0; }
template <vector V>
int32xN to_int32(V x) { return __builtin_convertvector(number(x), int32xN); }
template <vector V>
int64xN to_int64(V x) { return __builtin_convertvector(number(x), int64xN); }
template <vector V>
float32xN to_float32(V x) { return __builtin_convertvector(number(x), float32xN); }
template <vector V>
float64xN to_float64(V x) { return __builtin_convertvector(number(x), float64xN); }

inline int32 to_int8(int32 x) { return int8(x); }
inline int32 to_uint8(int32 x) { return uint8(x); }
inline int32 to_int16(int32 x) { return int16(x); }
inline float32 to_float16(float32 x) { return float16(x); }
inline float32 to_bfloat16(float32 x) { return bfloat16(x); }
inline int32xN to_int8(int32xN x) { return each([](int32 l) { return to_int8(l); }, x); }
inline int32xN to_uint8(int32xN x) { return each([](int32 l) { return to_uint8(l); }, x); }
inline int32xN to_int16(int32xN x) { return each([](int32 l) { return to_int16(l); }, x); }
inline float32xN to_float16(float32xN x) { return each([](float32 l) { return to_float16(l); }, x); }
inline float32xN to_bfloat16(float32xN x) { return each([](float32 l) { return to_bfloat16(l); }, x); }

// Operations without an operator of C++.

template <scalar T>
T minimum(T a, T b) { return a != a ? a : a < b ? a : b; }
template <scalar T>
T maximum(T a, T b) { return a != a ? a : a > b ? a : b; }
template <scalar T>
T sign(T x) { return x > 0 ? 1 : x < 0 ? -1 : 0; }
template <scalar T>
T abs(T x) {
  if constexpr (is_floating<T>) return __builtin_fabs(x);
  return x < 0 ? -x : x;
}
inline float32 sqrt(float32 x) { return __builtin_sqrtf(x); }
inline float64 sqrt(float64 x) { return __builtin_sqrt(x); }
template <scalar T>
T rsqrt(T x) { return T(1) / sqrt(x); }
template <scalar T>
T floor(T x) { return __builtin_floor(x); }
template <scalar T>
T ceil(T x) { return __builtin_ceil(x); }
template <scalar T>
T trunc(T x) { return __builtin_trunc(x); }
template <scalar T>
T round(T x) { return __builtin_rint(x); }
template <scalar T>
T copysign(T x, T sign) { return __builtin_copysign(x, sign); }
template <scalar T>
T shift_left(T x, T by) { return by < 0 || by >= T(8 * sizeof x) ? 0 : x << by; }
template <scalar T>
T shift_right(T x, T by) { return x >> (by < 0 || by >= T(8 * sizeof x) ? T(8 * sizeof x - 1) : by); }
template <scalar T>
T integer_trunc_divide(T a, T b) { return b == 0 ? 0 : b == -1 ? -a : a / b; }
template <scalar T>
T integer_fmod(T a, T b) { return b == 0 || b == -1 ? 0 : a % b; }
template <scalar T>
T integer_remainder(T a, T b) {
  const T rest = integer_fmod(a, b);
  return rest != 0 && (a ^ b) < 0 ? rest + b : rest;
}
template <scalar T>
T integer_floor_divide(T a, T b) {
  const T rest = integer_fmod(a, b);
  return integer_trunc_divide(a, b) - (rest != 0 && (a ^ b) < 0);
}

template <vector V>
V minimum(V a, V b) { return where(a != a, a, where(a < b, a, b)); }
template <vector V>
V maximum(V a, V b) { return where(a != a, a, where(a > b, a, b)); }
template <vector V>
V sign(V x) { return each([](auto l) { return sign(l); }, x); }
template <vector V>
V abs(V x) { return each([](auto l) { return abs(l); }, x); }
template <vector V>
V sqrt(V x) { return each([](auto l) { return sqrt(l); }, x); }
template <vector V>
V rsqrt(V x) { return each([](auto l) { return rsqrt(l); }, x); }
template <vector V>
V floor(V x) { return each([](auto l) { return floor(l); }, x); }
template <vector V>
V ceil(V x) { return each([](auto l) { return ceil(l); }, x); }
template <vector V>
V trunc(V x) { return each([](auto l) { return trunc(l); }, x); }
template <vector V>
V round(V x) { return each([](auto l) { return round(l); }, x); }
template <vector V>
V copysign(V x, V sign) { return each([](auto l, auto m) { return copysign(l, m); }, x, sign); }
template <vector V>
V shift_left(V x, V by) { return each([](auto l, auto m) { return shift_left(l, m); }, x, by); }
template <vector V>
V shift_right(V x, V by) { return each([](auto l, auto m) { return shift_right(l, m); }, x, by); }
template <vector V>
V integer_trunc_divide(V a, V b) { return each([](auto l, auto m) { return integer_trunc_divide(l, m); }, a, b); }
template <vector V>
V integer_fmod(V a, V b) { return each([](auto l, auto m) { return integer_fmod(l, m); }, a, b); }
template <vector V>
V integer_remainder(V a, V b) { return each([](auto l, auto m) { return integer_remainder(l, m); }, a, b); }
template <vector V>
V integer_floor_divide(V a, V b) { return each([](auto l, auto m) { return integer_floor_divide(l, m); }, a, b); }

inline int64 min(int64 a, int64 b) { return a < b ? a : b; }

// A reduction of a vector's lanes, by halves.

template <typename T, typename V, typename F>
T fold(V v, F f) {
  T part[lanes];
  for (int l = 0; l < lanes; ++l) part[l] = v[l];
  for (int half = lanes / 2; half > 0; half /= 2) {
    for (int l = 0; l < half; ++l) part[l] = f(part[l], part[l + half]);
  }
  return part[0];
}

template <vector V>
using Total = decltype(V{}[0] + 0);
inline float64 fold_sum(float32xN v) { return fold<float64>(v, [](auto a, auto b) { return a + b; }); }
inline float64 fold_prod(float32xN v) { return fold<float64>(v, [](auto a, auto b) { return a * b; }); }
template <vector V>
Total<V> fold_sum(V v) { return fold<Total<V>>(v, [](auto a, auto b) { return a + b; }); }
template <vector V>
Total<V> fold_prod(V v) { return fold<Total<V>>(v, [](auto a, auto b) { return a * b; }); }
template <vector V>
Total<V> fold_amax(V v) { return fold<Total<V>>(v, [](auto a, auto b) { return maximum(a, b); }); }
template <vector V>
Total<V> fold_amin(V v) { return fold<Total<V>>(v, [](auto a, auto b) { return minimum(a, b); }); }
inline bool fold_all(boolxN v) { return fold<bool>(v, [](bool a, bool b) { return a && b; }); }
inline bool fold_any(boolxN v) { return fold<bool>(v, [](bool a, bool b) { return a || b; }); }

// The reductions of as many vectors as there are lanes, one after another.
template <typename T, typename F>
auto fold_rows(const void* rows, F fold) {
  const auto* from = static_cast<const T*>(rows);
  decltype(splat(fold(load(from)))) result{};
  for (int l = 0; l < lanes; ++l) set(result, l, fold(load(from + l * lanes)));
  return result;
}

// One of fourfold._C.vector_functions(): it takes and returns a register.
template <typename Register>
struct VectorFunction {
  void* address;

  template <typename... Registers>
  Register call(Registers... x) const { return reinterpret_cast<Register (*)(Registers...)>(address)(x...); }

  template <vector... V>
  auto operator()(V... x) const { return wide(x...); }

  float32xN wide(float32xN x) const { return call(x); }
  float32xN wide(float32xN x, float32xN y) const { return call(x, y); }
  float64xN wide(float64xN x) const { return both(call(half(x, 0)), call(half(x, 1))); }
  float64xN wide(float64xN x, float64xN y) const { return both(call(half(x, 0), half(y, 0)), call(half(x, 1), half(y, 1))); }

  template <scalar... T>
  auto operator()(T... x) const { return (*this)(splat(x)...)[0]; }

  static float64xH half(float64xN x, int k) {
    float64xH part;
    memcpy(&part, reinterpret_cast<const char*>(&x) + k * sizeof part, sizeof part);
    return part;
  }
  static float64xN both(float64xH low, float64xH high) {
    float64xN result;
    memcpy(&result, &low, sizeof low);
    memcpy(reinterpret_cast<char*>(&result) + sizeof low, &high, sizeof high);
    return result;
  }
};

}  // namespace fourfold
