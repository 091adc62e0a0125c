// The call of a kernel: each parameter gets the value of its attribute. Included after the kernel's source.
#pragma once

#include "kernel.h"

struct GpusimMetalBuffer {
  void* memory;
  template <typename T>
  operator T*() const {
    return static_cast<T*>(memory);
  }
};

struct GpusimMetalValue {
  void* memory;
  template <typename T>
  operator T&() const {
    return *static_cast<T*>(memory);
  }
};

struct GpusimMetalVector {
  const unsigned* at;
  operator uint() const { return at[0]; }
  operator uint2() const { return {at[0], at[1]}; }
};

template <typename P>
struct GpusimMetalPointee {
  static constexpr bool one = false;
  static constexpr std::size_t bytes = 0, alignment = 1;
};
template <typename T>
struct GpusimMetalPointee<T*> {
  static constexpr bool one = false;
  static constexpr std::size_t bytes = 0, alignment = alignof(T);
};
template <typename T>
struct GpusimMetalPointee<T&> {
  static constexpr bool one = true;
  static constexpr std::size_t bytes = sizeof(T), alignment = alignof(T);
};

// `parameter` has the information of the attributes; this adds that of the types.
template <typename... P>
const GpusimMetalParameter* gpusim_metal_describe(void (*)(P...), GpusimMetalParameter* parameter) {
  GpusimMetalParameter* at = parameter;
  ((at->one = GpusimMetalPointee<P>::one, at->bytes = GpusimMetalPointee<P>::bytes,
    at->alignment = GpusimMetalPointee<P>::alignment, ++at),
   ...);
  return parameter;
}
