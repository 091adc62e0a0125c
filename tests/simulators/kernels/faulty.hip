// Kernels with one fault each, which the simulator has to catch. The test says how each is caught.
#include "selftest.h"

namespace {

constexpr unsigned long long all_lanes = ~0ull;

// Without the barrier, a thread reads what its neighbour may not have written yet.
__global__ void read_neighbour_unordered(int* out) {
  HIP_DYNAMIC_SHARED(int, values)
  const unsigned t = threadIdx.x;
  values[t] = static_cast<int>(t);
  out[t] = values[t == 0 ? blockDim.x - 1 : t - 1];
}

bool missing_barrier() {
  Array<int> out(64);
  hipLaunchKernelGGL(read_neighbour_unordered, dim3(1), dim3(64), 64 * sizeof(int), nullptr, out.data());
  bool right = launched();
  // The first thread's neighbour is the last one, and runs after it in one order only.
  for (int t = 0; t < 64; ++t) right = right && (t == 0 || same("the neighbour", out[t], t - 1));
  return right;
}

__global__ void reuse_unordered(int* out) {
  HIP_DYNAMIC_SHARED(int, value)
  for (int step = 0; step < 2; ++step) {
    if (threadIdx.x == 0) *value = step;
    __syncthreads();
    atomicAdd(&out[threadIdx.x], *value);
  }
}

// A barrier is there, but none keeps the next step from overwriting what others still read.
bool missing_second_barrier() {
  Array<int> out(64);
  hipLaunchKernelGGL(reuse_unordered, dim3(1), dim3(64), sizeof(int), nullptr, out.data());
  return launched();
}

__global__ void warp_unordered(int* out) {
  HIP_DYNAMIC_SHARED(int, values)
  const unsigned t = threadIdx.x;
  values[t] = static_cast<int>(t);
  // A shuffle makes lanes meet, and yet orders no memory.
  const int here = __shfl_sync(all_lanes, static_cast<int>(t), 0);
  out[t] = values[t ^ 1] + here;
}

bool missing_warp_barrier() {
  Array<int> out(64);
  hipLaunchKernelGGL(warp_unordered, dim3(1), dim3(64), 64 * sizeof(int), nullptr, out.data());
  return launched();
}

// Each half of a warp has a barrier of its own, which says nothing about the other half.
__global__ void halves_unordered(int* out) {
  HIP_DYNAMIC_SHARED(int, values)
  const int t = static_cast<int>(threadIdx.x);
  const int half = warpSize / 2;
  const unsigned long long low_half = (1ull << half) - 1;
  values[t] = t;
  if (t % warpSize < half) {
    __syncwarp(low_half);
  } else {
    gpusim::yield();  // the lower half has ended, where it comes first
    __syncwarp(low_half << half);
    out[t] = values[t - half];
  }
}

bool missing_barrier_of_halves() {
  Array<int> out(64);
  hipLaunchKernelGGL(halves_unordered, dim3(1), dim3(64), 64 * sizeof(int), nullptr, out.data());
  return launched();
}

__global__ void sum_without_atomics(float* sum) { *sum += 1.0f; }

// Right in every order of whole threads: only ThreadSanitizer sees that the GPU would lose additions.
bool racy_write() {
  Array<float> sum(1);
  hipLaunchKernelGGL(sum_without_atomics, dim3(1), dim3(32), 0, nullptr, sum.data());
  return launched() && same("the sum", sum[0], 32);
}

bool racy_blocks() {
  Array<float> sum(1);
  hipLaunchKernelGGL(sum_without_atomics, dim3(40), dim3(1), 0, nullptr, sum.data());
  return launched();
}

__global__ void pass_message(int* message, int* flag, int* out, int release, int scope) {
  if (blockIdx.x == 0) {
    *message = 42;
    __hip_atomic_store(flag, 1, release ? __ATOMIC_RELEASE : __ATOMIC_RELAXED, scope);
  } else {
    while (__hip_atomic_load(flag, __ATOMIC_ACQUIRE, scope) == 0) gpusim::yield();
    *out = *message;
  }
}

bool passed(int release, int scope) {
  // Apart, because ThreadSanitizer remembers only the last few accesses to each 8 bytes.
  Array<int> cells(48);
  int *message = &cells[0], *flag = &cells[16], *out = &cells[32];
  void* arguments[] = {&message, &flag, &out, &release, &scope};
  const hipError_t error = hipLaunchCooperativeKernel(pass_message, dim3(2), dim3(1), arguments, 0, nullptr);
  return error == hipSuccess && same("the message", *out, 42);
}

bool ordered_message() { return passed(1, __HIP_MEMORY_SCOPE_AGENT); }
bool relaxed_message() { return passed(0, __HIP_MEMORY_SCOPE_AGENT); }
bool message_of_narrow_scope() { return passed(1, __HIP_MEMORY_SCOPE_WORKGROUP); }

__global__ void write_shared(int* out, int index) {
  HIP_DYNAMIC_SHARED(int, values)
  values[index] = 1;
  *out = values[0];
}

bool shared_out_of_range() {
  Array<int> out(1);
  hipLaunchKernelGGL(write_shared, dim3(1), dim3(1), 16 * sizeof(int), nullptr, out.data(), 16);
  return launched();
}

__global__ void write_global(float* out) { out[blockIdx.x * blockDim.x + threadIdx.x] = 1.0f; }

bool global_out_of_range() {
  Array<float> out(100);
  hipLaunchKernelGGL(write_global, dim3(4), dim3(32), 0, nullptr, out.data());
  return launched();
}

__global__ void copy_four(const float* in, float4* out) { *out = *reinterpret_cast<const float4*>(in); }

// The GPU faults on a vector load whose address is no multiple of its size.
bool misaligned_vector() {
  Array<float> in(8);
  Array<float4> out(1);
  hipLaunchKernelGGL(copy_four, dim3(1), dim3(1), 0, nullptr, in.data() + 1, out.data());
  return launched();
}

__global__ void barrier_in_branches(int* out) {
  if (threadIdx.x < 16) {
    __syncthreads();
  } else {
    out[threadIdx.x] = 1;
    __syncthreads();
  }
}

bool divergent_barrier() {
  Array<int> out(32);
  hipLaunchKernelGGL(barrier_in_branches, dim3(1), dim3(32), 0, nullptr, out.data());
  return launched();
}

__global__ void barrier_for_some(int* out) {
  if (threadIdx.x < 16) __syncthreads();
  out[threadIdx.x] = __shfl_sync(all_lanes, 1, 0);
}

bool barrier_not_reached() {
  Array<int> out(32);
  hipLaunchKernelGGL(barrier_for_some, dim3(1), dim3(32), 0, nullptr, out.data());
  return launched();
}

__global__ void shuffle_for_some(int* out) {
  const int t = static_cast<int>(threadIdx.x);
  if (t < 8) out[t] = __shfl_down_sync(all_lanes, t, 1u);
  __syncthreads();
}

bool divergent_shuffle() {
  Array<int> out(32);
  hipLaunchKernelGGL(shuffle_for_some, dim3(1), dim3(32), 0, nullptr, out.data());
  return launched();
}

__global__ void wait_for_all_blocks(unsigned* arrived) {
  if (blockIdx.x == 2) return;
  if (threadIdx.x == 0) {
    atomicAdd(arrived, 1u);
    while (atomicAdd(arrived, 0u) < gridDim.x) gpusim::yield();
  }
  __syncthreads();
}

bool grid_barrier_not_reached() {
  Array<unsigned> arrived(1);
  unsigned* counter = arrived.data();
  void* arguments[] = {&counter};
  return hipLaunchCooperativeKernel(wait_for_all_blocks, dim3(4), dim3(64), arguments, 0, nullptr) == hipSuccess;
}

// Without a pause, and not cooperative: block 0 waits for blocks that come after it.
bool waiting_for_later_blocks() {
  Array<unsigned> arrived(1);
  hipLaunchKernelGGL(wait_for_all_blocks, dim3(4), dim3(64), 0, nullptr, arrived.data());
  return launched();
}

}  // namespace

const std::vector<Case>& faulty_cases() {
  static const std::vector<Case> cases = {
      {"missing_barrier", missing_barrier},
      {"missing_second_barrier", missing_second_barrier},
      {"missing_warp_barrier", missing_warp_barrier},
      {"missing_barrier_of_halves", missing_barrier_of_halves},
      {"racy_write", racy_write},
      {"racy_blocks", racy_blocks},
      {"ordered_message", ordered_message},
      {"relaxed_message", relaxed_message},
      {"message_of_narrow_scope", message_of_narrow_scope},
      {"shared_out_of_range", shared_out_of_range},
      {"global_out_of_range", global_out_of_range},
      {"misaligned_vector", misaligned_vector},
      {"divergent_barrier", divergent_barrier},
      {"barrier_not_reached", barrier_not_reached},
      {"divergent_shuffle", divergent_shuffle},
      {"grid_barrier_not_reached", grid_barrier_not_reached},
      {"waiting_for_later_blocks", waiting_for_later_blocks},
  };
  return cases;
}
