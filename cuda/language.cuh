// Device functions for the few places where NVIDIA's and AMD's languages differ. Without includes, because NVRTC and
// hipRTC compile it too.
#pragma once

#if defined(__HIP__) && !defined(USE_ROCM)
#define USE_ROCM 1
#endif

#define FOURFOLD_FN __device__ __forceinline__
#define FOURFOLD_CONSTANT static constexpr
#define FOURFOLD_ANYWHERE __host__ __device__ __forceinline__

namespace fourfold::gpu {

// The number of lanes that exchange values (a warp). A wavefront of 64 is two such groups.
constexpr int group_size = 32;

// The block's dynamic shared memory; each kernel partitions it itself.
template <typename T>
FOURFOLD_FN T* shared_memory() {
#if defined(GPUSIM)
  HIP_DYNAMIC_SHARED(float4, fourfold_shared)
#else
  extern __shared__ float4 fourfold_shared[];
#endif
  return reinterpret_cast<T*>(fourfold_shared);
}

// The value of another lane of the group.
template <typename T>
FOURFOLD_FN T from_lane(T value, int lane) {
#if defined(USE_ROCM)
  return __shfl(value, lane, group_size);
#else
  return __shfl_sync(0xffffffffu, value, lane, group_size);
#endif
}

// The value of the lane whose index differs in these bits.
template <typename T>
FOURFOLD_FN T from_lane_across(T value, int bits) {
#if defined(USE_ROCM)
  return __shfl_xor(value, bits, group_size);
#else
  return __shfl_xor_sync(0xffffffffu, value, bits, group_size);
#endif
}

FOURFOLD_FN void sync_group() {
#if defined(USE_ROCM)
  __builtin_amdgcn_wave_barrier();
#else
  __syncwarp();
#endif
}

// 1 / x within one unit in the last place: on NVIDIA a division takes longer than an exponential. Simulations divide.
FOURFOLD_FN float approximate_reciprocal(float x) {
#if defined(USE_ROCM)
  return 1.0f / x;
#else
  float result;
  asm("rcp.approx.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
#endif
}

// Converts a float to 16 bits, rounded to nearest, ties to even. NaN stays NaN.
FOURFOLD_FN unsigned short half_bits(float x) {
#if defined(USE_ROCM)
  return __builtin_bit_cast(unsigned short, static_cast<_Float16>(x));
#else
  unsigned short bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
  return bits;
#endif
}

FOURFOLD_FN float float_of_half(unsigned short bits) {
#if defined(USE_ROCM)
  return static_cast<float>(__builtin_bit_cast(_Float16, bits));
#else
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
  return x;
#endif
}

FOURFOLD_FN unsigned short bfloat_bits(float x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  unsigned short bits;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
  return bits;
#else
  const unsigned bits = __builtin_bit_cast(unsigned, x);
  return static_cast<unsigned short>(x != x ? 0x7fc0u : (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
#endif
}

FOURFOLD_FN float float_of_bfloat(unsigned short bits) {
  return __builtin_bit_cast(float, static_cast<unsigned>(bits) << 16);
}

}  // namespace fourfold::gpu
