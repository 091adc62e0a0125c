// Plain types for the arguments of all backends' kernels. They don't depend on torch, so that files compiled once per
// CPU level can include them.
#pragma once

#include <cstdint>
#include <type_traits>

namespace fourfold {

// All dtypes: _(name in programs, torch's name, torch's ScalarType number, C++ type, bytes, the dtype in which programs
// compute). c10's types are only named, not included.
#define FOURFOLD_DTYPES(_)                              \
  _(boolean, bool, 11, bool, 1, boolean)                \
  _(uint8, uint8, 0, uint8_t, 1, int32)                 \
  _(int8, int8, 1, int8_t, 1, int32)                    \
  _(int16, int16, 2, int16_t, 2, int32)                 \
  _(int32, int32, 3, int32_t, 4, int32)                 \
  _(int64, int64, 4, int64_t, 8, int64)                 \
  _(float16, float16, 5, c10::Half, 2, float32)         \
  _(bfloat16, bfloat16, 15, c10::BFloat16, 2, float32)  \
  _(float32, float32, 6, float, 4, float32)             \
  _(float64, float64, 7, double, 8, float64)

enum class Kind {
#define FOURFOLD_NAME(name, ...) name,
  FOURFOLD_DTYPES(FOURFOLD_NAME)
#undef FOURFOLD_NAME
};

struct Dtype {
  const char* name;   // in programs
  const char* torch;  // without "torch."
  int32_t number;     // torch's ScalarType
  int64_t bytes;
  Kind computed;
};

inline constexpr Dtype dtypes[] = {
#define FOURFOLD_DTYPE(name, torch, number, type, bytes, computed) {#name, #torch, number, bytes, Kind::computed},
    FOURFOLD_DTYPES(FOURFOLD_DTYPE)
#undef FOURFOLD_DTYPE
};

constexpr const Dtype& describe(Kind kind) { return dtypes[static_cast<int>(kind)]; }
constexpr int64_t element_size(Kind kind) { return describe(kind).bytes; }
constexpr bool is_half(Kind kind) { return kind == Kind::float16 || kind == Kind::bfloat16; }

// A device, by torch's numbers: of a call's tensors and of its kernel.
struct Place {
  int32_t type;
  int32_t index;
};

// A tensor's memory in a job: an allocation and an offset in bytes. Null if the tensor is absent. On devices with
// memory addresses it converts to a pointer.
template <typename Void>
struct Memory {
  Void* base = nullptr;
  int64_t offset = 0;

  constexpr Memory() = default;
  constexpr Memory(Void* base, int64_t offset = 0) : base(base), offset(offset) {}
  template <typename Other>
  constexpr Memory(const Memory<Other>& other) : base(other.base), offset(other.offset) {}

  constexpr Memory behind(int64_t bytes) const { return base == nullptr ? *this : Memory(base, offset + bytes); }

  constexpr operator Void*() const { return address(); }
  template <typename T>
  constexpr explicit operator T*() const {
    return static_cast<T*>(address());
  }

 private:
  using Byte = std::conditional_t<std::is_const_v<Void>, const char, char>;

  constexpr Void* address() const { return base == nullptr ? nullptr : static_cast<Byte*>(base) + offset; }
};

using Input = Memory<const void>;
using Output = Memory<void>;

}  // namespace fourfold
