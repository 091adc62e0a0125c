// The built-in vector types with CUDA's alignments, without the arithmetic that only HIP has.
#pragma once

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

template <typename T>
struct alignas(2 * sizeof(T)) GpusimVector2 {
  T x, y;
};

template <typename T>
struct GpusimVector3 {
  T x, y, z;
};

template <typename T>
struct alignas(4 * sizeof(T) < 16 ? 4 * sizeof(T) : 16) GpusimVector4 {
  T x, y, z, w;
};

using uchar2 = GpusimVector2<unsigned char>;
using uchar4 = GpusimVector4<unsigned char>;
using short2 = GpusimVector2<short>;
using short4 = GpusimVector4<short>;
using ushort2 = GpusimVector2<unsigned short>;
using ushort4 = GpusimVector4<unsigned short>;
using int2 = GpusimVector2<int>;
using int3 = GpusimVector3<int>;
using int4 = GpusimVector4<int>;
using uint2 = GpusimVector2<unsigned>;
using uint3 = GpusimVector3<unsigned>;
using uint4 = GpusimVector4<unsigned>;
using longlong2 = GpusimVector2<long long>;
using ulonglong2 = GpusimVector2<unsigned long long>;
using float2 = GpusimVector2<float>;
using float3 = GpusimVector3<float>;
using float4 = GpusimVector4<float>;
using double2 = GpusimVector2<double>;

constexpr int2 make_int2(int x, int y) { return {x, y}; }
constexpr int3 make_int3(int x, int y, int z) { return {x, y, z}; }
constexpr int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
constexpr uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
constexpr uint3 make_uint3(unsigned x, unsigned y, unsigned z) { return {x, y, z}; }
constexpr uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
constexpr float2 make_float2(float x, float y) { return {x, y}; }
constexpr float3 make_float3(float x, float y, float z) { return {x, y, z}; }
constexpr float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
constexpr double2 make_double2(double x, double y) { return {x, y}; }
constexpr longlong2 make_longlong2(long long x, long long y) { return {x, y}; }
constexpr ulonglong2 make_ulonglong2(unsigned long long x, unsigned long long y) { return {x, y}; }
constexpr ushort2 make_ushort2(unsigned short x, unsigned short y) { return {x, y}; }
constexpr ushort4 make_ushort4(unsigned short x, unsigned short y, unsigned short z, unsigned short w) {
  return {x, y, z, w};
}
