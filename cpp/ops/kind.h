// The plain types in which an operator hands memory to any backend's kernels. Nothing of torch, so that files which are
// compiled once per CPU level may include it.
#pragma once

#include <cstdint>
#include <type_traits>

namespace fourfold {

enum class Kind { boolean, uint8, int8, int16, int32, int64, float16, bfloat16, float32, float64 };

constexpr int64_t element_size(Kind kind) {
  switch (kind) {
    case Kind::boolean:
    case Kind::uint8:
    case Kind::int8: return 1;
    case Kind::int16:
    case Kind::float16:
    case Kind::bfloat16: return 2;
    case Kind::int32:
    case Kind::float32: return 4;
    default: return 8;
  }
}

// A device as torch numbers it: where a call's tensors lie, and where its kernel runs.
struct Place {
  int32_t type;
  int32_t index;
};

// A tensor's elements as a job holds them: a device's allocation, and how many bytes into it. Null where a job leaves the
// tensor out. Where a device's memory has addresses, the two are one pointer, to which this converts.
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
