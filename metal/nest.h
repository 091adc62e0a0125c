// The functions that generated kernels call, in Metal's language: compile without fast math. Kind is the storage type:
// boolean, int8, uint8, int16, int32, int64, float16, bfloat16 or float32. Its value is a bool, int32, int64 or
// float32. Pointers are to device, constant or threadgroup memory.
#pragma once

// Results must equal those of the separate operations. Even without fast math, Metal would contract a multiplication
// and an addition in one statement.
#if defined(__METAL_VERSION__)
#pragma METAL fp contract(off)
#endif

#include "numbers.h"

namespace fourfold {

struct boolean {
  uint8 byte;  // true if not 0
};

// n values in registers.
template <typename T, int n>
struct Vec {
  T v[n];
  thread T& operator[](int k) { return v[k]; }
  T operator[](int k) const { return v[k]; }
};

#include "formulas/lanes.h"
#undef FOURFOLD_LANES

#include "formulas/storage.h"

template <typename Kind>
using Value = typename Stored<Kind>::Value;

// A value from its low bytes.
template <typename T>
inline T number(int64 bits) { return Stored<T>::value(typename Stored<T>::Bits(bits)); }
template <>
inline bool number<bool>(int64 bits) { return (bits & 0xff) != 0; }

// A pointer's element type, and the pointer to T in the same address space.
template <typename Pointer, typename T = uint8>
struct Pointee;
template <typename K, typename T>
struct Pointee<device K*, T> {
  typedef K Kind;
  typedef device T* To;
};
template <typename K, typename T>
struct Pointee<device const K*, T> {
  typedef K Kind;
  typedef device const T* To;
};
#if defined(__METAL_VERSION__)  // the simulator has only one address space
template <typename K, typename T>
struct Pointee<threadgroup K*, T> {
  typedef K Kind;
  typedef threadgroup T* To;
};
template <typename K, typename T>
struct Pointee<threadgroup const K*, T> {
  typedef K Kind;
  typedef threadgroup const T* To;
};
template <typename K, typename T>
struct Pointee<constant K*, T> {
  typedef K Kind;
  typedef constant T* To;
};
#endif
template <typename Pointer>
using ValueAt = Value<typename Pointee<Pointer>::Kind>;

template <typename T, typename Pointer>
inline T read(Pointer from) { return *reinterpret_cast<typename Pointee<Pointer, T>::To>(from); }
template <typename T, typename Pointer>
inline void write(Pointer to, T value) { *reinterpret_cast<typename Pointee<Pointer, T>::To>(to) = value; }

// Accesses `bytes` bytes as words; more than 16 bytes as several accesses. Metal's compiler lets vector types alias
// elements of other types.
template <int bytes>
struct Accesses {
  typedef Words<bytes / 4> Memory;
  template <typename Pointer>
  inline static Memory load(Pointer from) {
    Memory result;
#pragma unroll
    for (int part = 0; part < bytes / 16; ++part) {
      const uint4 words = read<uint4>(reinterpret_cast<typename Pointee<Pointer, uint4>::To>(from) + part);
      result.w[4 * part] = words.x;
      result.w[4 * part + 1] = words.y;
      result.w[4 * part + 2] = words.z;
      result.w[4 * part + 3] = words.w;
    }
    return result;
  }
  template <typename Pointer>
  inline static void store(Pointer to, Memory memory) {
#pragma unroll
    for (int part = 0; part < bytes / 16; ++part) {
      uint4 words;
      words.x = memory.w[4 * part];
      words.y = memory.w[4 * part + 1];
      words.z = memory.w[4 * part + 2];
      words.w = memory.w[4 * part + 3];
      write(reinterpret_cast<typename Pointee<Pointer, uint4>::To>(to) + part, words);
    }
  }
};
template <typename T>
struct OneWord {
  template <typename Pointer>
  inline static Words<1> load(Pointer from) { return {uint32(read<T>(from))}; }
  template <typename Pointer>
  inline static void store(Pointer to, Words<1> memory) { write(to, T(memory.w[0])); }
};
template <>
struct Accesses<1> : OneWord<uint8> {};
template <>
struct Accesses<2> : OneWord<uint16> {};
template <>
struct Accesses<4> {
  template <typename Pointer>
  inline static Words<1> load(Pointer from) { return {as_type<uint32>(read<ushort2>(from))}; }
  template <typename Pointer>
  inline static void store(Pointer to, Words<1> memory) { write(to, as_type<ushort2>(memory.w[0])); }
};
template <>
struct Accesses<8> {
  template <typename Pointer>
  inline static Words<2> load(Pointer from) {
    const uint2 words = read<uint2>(from);
    return {{words.x, words.y}};
  }
  template <typename Pointer>
  inline static void store(Pointer to, Words<2> memory) {
    uint2 words;
    words.x = memory.w[0];
    words.y = memory.w[1];
    write(to, words);
  }
};

template <typename Pointer>
inline ValueAt<Pointer> load(Pointer from) {
  typedef Stored<typename Pointee<Pointer>::Kind> Of;
  return Of::value(read<typename Of::Bits>(from));
}
// Zero, without an access, if not valid.
template <typename Pointer>
inline ValueAt<Pointer> load(Pointer from, bool valid) { return valid ? load(from) : ValueAt<Pointer>(0); }
template <typename Pointer>
inline void store(Pointer to, ValueAt<Pointer> value) { write(to, Stored<typename Pointee<Pointer>::Kind>::bits(value)); }

// n consecutive elements, aligned to their total size or to 16 bytes.
template <int n, typename Pointer>
inline Vec<ValueAt<Pointer>, n> load(Pointer from) {
  typedef typename Pointee<Pointer>::Kind Kind;
  return Packed<n, Kind>::values(Accesses<Packing<Kind, n>::bytes>::load(from));
}
// Zeros, without an access, if not valid.
template <int n, typename Pointer>
inline Vec<ValueAt<Pointer>, n> load(Pointer from, bool valid) {
  typedef typename Pointee<Pointer>::Kind Kind;
  typename Packed<n, Kind>::Memory memory = {};
  if (valid) memory = Accesses<Packing<Kind, n>::bytes>::load(from);
  return Packed<n, Kind>::values(memory);
}
template <typename Pointer, int n>
inline void store(Pointer to, Vec<ValueAt<Pointer>, n> values) {
  typedef typename Pointee<Pointer>::Kind Kind;
  Accesses<Packing<Kind, n>::bytes>::store(to, Packed<n, Kind>::words(values));
}

// n elements with that stride.
template <int n, typename Pointer, typename Index>
inline Vec<ValueAt<Pointer>, n> load_strided(Pointer from, Index stride, bool valid = true) {
  Vec<ValueAt<Pointer>, n> result = {};
  if (valid) {
#pragma unroll
    for (int k = 0; k < n; ++k) result.v[k] = load(from + k * stride);
  }
  return result;
}
template <typename Pointer, typename Index, int n>
inline void store_strided(Pointer to, Index stride, Vec<ValueAt<Pointer>, n> values) {
#pragma unroll
  for (int k = 0; k < n; ++k) store(to + k * stride, values.v[k]);
}

// Synchronises the threadgroup and its memory.
inline void barrier() { metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup); }

}  // namespace fourfold
