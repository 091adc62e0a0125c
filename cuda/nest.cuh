// The functions that generated kernels call, for NVIDIA's and AMD's run-time compilers: compile with -std=c++17 or
// newer and --fmad=false (-ffp-contract=off), without fast math. It includes only files without includes of others.
//
// Kind is the storage type: boolean, int8, uint8, int16, int32, int64, float16, bfloat16, float32 or float64. Its value
// is a bool, int32, int64, float32 or float64.
#pragma once

#include "numbers.cuh"

namespace fourfold {

struct boolean {
  uint8 byte;  // true if not 0
};
struct float16 {
  uint16 bits;
};
struct bfloat16 {
  uint16 bits;
};

// n values in registers.
template <typename T, int n>
struct Vec {
  T v[n];
  FOURFOLD_FN T& operator[](int k) { return v[k]; }
  FOURFOLD_FN const T& operator[](int k) const { return v[k]; }
};

#include "formulas/lanes.h"
FOURFOLD_LANES(to_float64)
#undef FOURFOLD_LANES

using gpu::bfloat_bits;
using gpu::float_of_bfloat;
using gpu::float_of_half;
using gpu::half_bits;
template <typename To, typename From>
FOURFOLD_FN To as_bits(From x) { return __builtin_bit_cast(To, x); }
template <typename To, typename From>
FOURFOLD_FN To of_bits(From x) { return __builtin_bit_cast(To, x); }

#include "formulas/storage.h"
template <>
struct Stored<float64> : StoredFloating<float64, uint64> {};

template <typename Kind>
using Value = typename Stored<Kind>::Value;

// A value from its low bytes.
template <typename T>
FOURFOLD_FN T number(int64 bits) { return Stored<T>::value(static_cast<typename Stored<T>::Bits>(bits)); }
template <>
FOURFOLD_FN bool number<bool>(int64 bits) { return (bits & 0xff) != 0; }

FOURFOLD_FN void barrier() { __syncthreads(); }
FOURFOLD_FN int thread_index() { return static_cast<int>(threadIdx.x); }
FOURFOLD_FN int block_index() { return static_cast<int>(blockIdx.x); }
FOURFOLD_FN int block_count() { return static_cast<int>(gridDim.x); }
FOURFOLD_FN uint8* shared_memory() { return gpu::shared_memory<uint8>(); }

// One access of up to 16 bytes. It may alias elements of other types.
template <typename T>
struct __attribute__((may_alias, aligned(sizeof(T)))) Access {
  T value;
};
// Copies the whole Access, because NVCC knows the alignment of an Access but not of its member.
template <typename T>
FOURFOLD_FN T read(const void* from) {
  const Access<T> access = *static_cast<const Access<T>*>(from);
  return access.value;
}
template <typename T>
FOURFOLD_FN void write(void* to, T value) { *static_cast<Access<T>*>(to) = {value}; }

// Accesses `bytes` bytes as words; more than 16 bytes as several accesses.
template <int bytes>
struct Accesses {
  typedef Words<bytes / 4> Memory;
  FOURFOLD_FN static Memory load(const uint8* from) {
    Memory result;
#pragma unroll
    for (int part = 0; part < bytes / 16; ++part) {
      const Words<4> words = read<Words<4>>(from + 16 * part);
#pragma unroll
      for (int k = 0; k < 4; ++k) result.w[4 * part + k] = words.w[k];
    }
    return result;
  }
  FOURFOLD_FN static void store(uint8* to, Memory memory) {
#pragma unroll
    for (int part = 0; part < bytes / 16; ++part) {
      const int k = 4 * part;
      write(to + 16 * part, Words<4>{memory.w[k], memory.w[k + 1], memory.w[k + 2], memory.w[k + 3]});
    }
  }
};
template <typename T>
struct OneWord {
  FOURFOLD_FN static Words<1> load(const void* from) { return {read<T>(from)}; }
  FOURFOLD_FN static void store(void* to, Words<1> memory) { write(to, static_cast<T>(memory.w[0])); }
};
template <>
struct Accesses<1> : OneWord<uint8> {};
template <>
struct Accesses<2> : OneWord<uint16> {};
template <>
struct Accesses<4> : OneWord<uint32> {};
template <>
struct Accesses<8> {
  FOURFOLD_FN static Words<2> load(const void* from) { return read<Words<2>>(from); }
  FOURFOLD_FN static void store(void* to, Words<2> memory) { write(to, memory); }
};

template <typename Kind>
FOURFOLD_FN Value<Kind> load(const Kind* from) { return Stored<Kind>::value(read<typename Stored<Kind>::Bits>(from)); }
// Zero, without an access, if not valid.
template <typename Kind>
FOURFOLD_FN Value<Kind> load(const Kind* from, bool valid) { return valid ? load(from) : Value<Kind>(0); }
template <typename Kind>
FOURFOLD_FN void store(Kind* to, Value<Kind> value) { write(to, Stored<Kind>::bits(value)); }

// n consecutive elements, aligned to their total size or to 16 bytes.
template <int n, typename Kind>
FOURFOLD_FN Vec<Value<Kind>, n> load(const Kind* from) {
  const uint8* bytes = reinterpret_cast<const uint8*>(from);
  return Packed<n, Kind>::values(Accesses<Packing<Kind, n>::bytes>::load(bytes));
}
// Zeros, without an access, if not valid.
template <int n, typename Kind>
FOURFOLD_FN Vec<Value<Kind>, n> load(const Kind* from, bool valid) {
  typename Packed<n, Kind>::Memory memory = {};
  if (valid) memory = Accesses<Packing<Kind, n>::bytes>::load(reinterpret_cast<const uint8*>(from));
  return Packed<n, Kind>::values(memory);
}
template <typename Kind, int n>
FOURFOLD_FN void store(Kind* to, Vec<Value<Kind>, n> values) {
  Accesses<Packing<Kind, n>::bytes>::store(reinterpret_cast<uint8*>(to), Packed<n, Kind>::words(values));
}

// n elements with that stride.
template <int n, typename Kind, typename Index>
FOURFOLD_FN Vec<Value<Kind>, n> load_strided(const Kind* from, Index stride, bool valid = true) {
  Vec<Value<Kind>, n> result = {};
  if (valid) {
#pragma unroll
    for (int k = 0; k < n; ++k) result.v[k] = load(from + k * stride);
  }
  return result;
}
template <typename Kind, typename Index, int n>
FOURFOLD_FN void store_strided(Kind* to, Index stride, Vec<Value<Kind>, n> values) {
#pragma unroll
  for (int k = 0; k < n; ++k) store(to + k * stride, values.v[k]);
}

}  // namespace fourfold
