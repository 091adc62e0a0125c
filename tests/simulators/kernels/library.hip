// A simulated library that Python loads, with torch's half-precision types, a correct kernel and a faulty one.
#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Half.h>

#include <hip/hip_runtime.h>

namespace {

template <typename T>
__global__ void scale(const T* in, T* out, float factor, int64_t size) {
  HIP_DYNAMIC_SHARED(T, row)
  const int64_t k = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (k < size) row[threadIdx.x] = in[k];
  __syncthreads();
  if (k < size) out[k] = static_cast<T>(static_cast<float>(row[threadIdx.x]) * factor);
}

template <typename T>
int launch_scale(const void* in, void* out, float factor, int64_t size) {
  constexpr unsigned threads = 64;
  const dim3 grid(static_cast<unsigned>((size + threads - 1) / threads));
  hipLaunchKernelGGL((scale<T>), grid, dim3(threads), threads * sizeof(T), nullptr, static_cast<const T*>(in),
                     static_cast<T*>(out), factor, size);
  const hipError_t error = hipGetLastError();
  return error != hipSuccess ? error : hipDeviceSynchronize();
}

__global__ void sum_without_atomics(const float* in, float* sum) { *sum += in[blockIdx.x]; }

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT int scale_half(const void* in, void* out, float factor, int64_t size) {
  return launch_scale<c10::Half>(in, out, factor, size);
}

EXPORT int scale_bfloat16(const void* in, void* out, float factor, int64_t size) {
  return launch_scale<c10::BFloat16>(in, out, factor, size);
}

EXPORT int racy_sum(const float* in, float* sum, int64_t size) {
  hipLaunchKernelGGL(sum_without_atomics, dim3(static_cast<unsigned>(size)), dim3(1), 0, nullptr, in, sum);
  return hipDeviceSynchronize();
}
