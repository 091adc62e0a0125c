// Shared by device code: storage types and their compute types, and the differences between NVIDIA's and AMD's
// languages that are not in language.cuh.
#pragma once

#include <cuda_runtime.h>
#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Half.h>

#include <cstdint>
#include <type_traits>

#include "language.cuh"
#include "ops/kind.h"

namespace fourfold::gpu {

using Half = c10::Half;
using BFloat16 = c10::BFloat16;

template <typename T>
using Compute = std::conditional_t<std::is_same_v<T, double>, double, float>;

// n values that one load or store moves, up to 16 bytes.
template <typename T, int n>
struct alignas(sizeof(T) * n) AlignedVector {
  T v[n];
};

template <typename T>
constexpr int vector_size = 16 / sizeof(T);

template <typename T>
struct Type {
  using type = T;
};

// Calls f(Type<T>()) with the floating-point type of `kind`.
template <typename F>
void visit_floating(Kind kind, const F& f) {
  switch (kind) {
    case Kind::float64: return f(Type<double>());
    case Kind::float32: return f(Type<float>());
    case Kind::bfloat16: return f(Type<BFloat16>());
    default: return f(Type<Half>());
  }
}

// Flags between blocks: after read_flag() sees a value, the writer's stores before raise_flag() are visible to any
// block.
FOURFOLD_FN void raise_flag(uint32_t* flag, uint32_t value) {
#if defined(USE_ROCM)
  __hip_atomic_store(flag, value, __ATOMIC_RELEASE, __HIP_MEMORY_SCOPE_AGENT);
#else
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(flag), "r"(value) : "memory");
#endif
}

FOURFOLD_FN uint32_t read_flag(const uint32_t* flag) {
#if defined(USE_ROCM)
  return __hip_atomic_load(flag, __ATOMIC_ACQUIRE, __HIP_MEMORY_SCOPE_AGENT);
#else
  uint32_t value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
  return value;
#endif
}

// Called while polling a flag: on AMD, yields to other wavefronts of the compute unit.
FOURFOLD_FN void pause() {
#if defined(USE_ROCM)
  __builtin_amdgcn_s_sleep(1);
#endif
}

// Loads 16 bytes that another block of the same launch may have written, bypassing this multiprocessor's L1 cache,
// which isn't coherent. Volatile, so that the compiler doesn't move the load before the flag's.
FOURFOLD_FN uint4 load_written(const void* from) {
#if defined(USE_ROCM)
  return *static_cast<const uint4*>(from);  // the acquire before it has invalidated that cache
#else
  uint4 value;
  asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(from)
               : "memory");
  return value;
#endif
}

}  // namespace fourfold::gpu
