// Kernels with one error each, which the simulator must detect. The test defines how.
#include "selftest.h"

namespace {

// Without the barrier, a thread may read before its neighbour has written.
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
  // The first thread's neighbour is the last one, which runs after it in only one of the orders.
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

// One barrier is there, but none before the next step overwrites what others still read.
bool missing_second_barrier() {
  Array<int> out(64);
  hipLaunchKernelGGL(reuse_unordered, dim3(1), dim3(64), sizeof(int), nullptr, out.data());
  return launched();
}

__global__ void warp_unordered(int* out) {
  HIP_DYNAMIC_SHARED(int, values)
  const unsigned t = threadIdx.x;
  values[t] = static_cast<int>(t);
  // A shuffle makes lanes meet, but orders no memory.
  const int here = __shfl_sync(all_lanes, static_cast<int>(t), 0);
  out[t] = values[t ^ 1] + here;
}

bool missing_warp_barrier() {
  Array<int> out(64);
  hipLaunchKernelGGL(warp_unordered, dim3(1), dim3(64), 64 * sizeof(int), nullptr, out.data());
  return launched();
}

// Each half of a warp has its own barrier, which doesn't order it with the other half.
__global__ void halves_unordered(int* out) {
  HIP_DYNAMIC_SHARED(int, values)
  const int t = static_cast<int>(threadIdx.x);
  const int half = warpSize / 2;
  const unsigned long long low_half = (1ull << half) - 1;
  values[t] = t;
  if (t % warpSize < half) {
    __syncwarp(low_half);
  } else {
    gpusim::yield();  // the lower half has ended, if it runs first
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

// Correct in every order of whole threads: only ThreadSanitizer detects that a GPU would lose additions.
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
  // Apart from each other, because ThreadSanitizer remembers only the last few accesses to each 8 bytes.
  Array<int> cells(48);
  int *message = &cells[0], *flag = &cells[16], *out = &cells[32];
  void* arguments[] = {&message, &flag, &out, &release, &scope};
  const hipError_t error = hipLaunchCooperativeKernel(pass_message, dim3(2), dim3(1), arguments, 0, nullptr);
  return error == hipSuccess && launched() && same("the message", *out, 42);
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

// The GPU faults on a misaligned vector load.
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

// Without a yield, and not cooperative: block 0 waits for later blocks.
bool waiting_for_later_blocks() {
  Array<unsigned> arrived(1);
  hipLaunchKernelGGL(wait_for_all_blocks, dim3(4), dim3(64), 0, nullptr, arrived.data());
  return launched();
}

bool run_on(int* memory, hipStream_t stream = nullptr) {
  hipLaunchKernelGGL(add_one, dim3(1), dim3(1), 0, stream, memory);
  return launched();
}

bool host_pointer() {
  int here = 1;
  return run_on(&here);
}

bool host_heap() {
  const std::vector<int> here(4);
  return run_on(const_cast<int*>(here.data()));
}

// A pointer inside a struct may point to the host too.
struct Job {
  const int* lengths;
  int* out;
};

__global__ void read_lengths(Job job) { *job.out = job.lengths[1]; }

bool host_pointer_within() {
  const int lengths[2] = {3, 2};
  Array<int> out(1);
  hipLaunchKernelGGL(read_lengths, dim3(1), dim3(1), 0, nullptr, Job{lengths, out.data()});
  return launched();
}

bool read_on_host() {
  int* memory = nullptr;
  if (hipMalloc(&memory, sizeof(int)) != hipSuccess || hipMemset(memory, 0, sizeof(int)) != hipSuccess) return false;
  (void)hipDeviceSynchronize();
  return same("the device's", *memory, 0);
}

// A copy's kind must match its two ends.
bool wrong_copy() {
  int here = 0, there = 0;
  return hipMemcpyAsync(&here, &there, sizeof(int), hipMemcpyDeviceToDevice, nullptr) == hipSuccess;
}

bool copy_beyond() {
  Array<int> from(2), to(3);
  const size_t bytes = 3 * sizeof(int);
  return hipMemcpyAsync(to.data(), from.data(), bytes, hipMemcpyDeviceToDevice, nullptr) == hipSuccess && launched();
}

bool freed_memory() {
  int* memory = nullptr;
  if (hipMalloc(&memory, sizeof(int)) != hipSuccess || hipFree(memory) != hipSuccess) return false;
  return run_on(memory);
}

// The stream that frees the memory does not wait for the one that uses it.
bool freed_too_early() {
  int* memory = nullptr;
  hipStream_t user = nullptr, other = nullptr;
  if (hipMalloc(&memory, sizeof(int)) != hipSuccess || hipStreamCreate(&user) != hipSuccess ||
      hipStreamCreate(&other) != hipSuccess) {
    return false;
  }
  hipLaunchKernelGGL(add_one, dim3(1), dim3(1), 0, user, memory);
  return hipFreeAsync(memory, other) == hipSuccess && launched();
}

// A copy from pinned memory reads it when the stream reaches the copy.
bool changed_too_early() {
  int *pinned = nullptr, *memory = nullptr, result = 0;
  if (hipHostMalloc(&pinned, sizeof(int)) != hipSuccess || hipMalloc(&memory, sizeof(int)) != hipSuccess) return false;
  *pinned = 1;
  if (hipMemcpyAsync(memory, pinned, sizeof(int), hipMemcpyHostToDevice, nullptr) != hipSuccess) return false;
  *pinned = 2;
  return hipMemcpy(&result, memory, sizeof(int), hipMemcpyDeviceToHost) == hipSuccess && same("the copy", result, 1);
}

// The result isn't there when the asynchronous call returns.
bool read_too_early() {
  int *pinned = nullptr, *memory = nullptr;
  if (hipHostMalloc(&pinned, sizeof(int)) != hipSuccess || hipMalloc(&memory, sizeof(int)) != hipSuccess) return false;
  *pinned = 0;
  if (hipMemset(memory, 1, sizeof(int)) != hipSuccess) return false;
  if (hipMemcpyAsync(pinned, memory, sizeof(int), hipMemcpyDeviceToHost, nullptr) != hipSuccess) return false;
  return same("the result", *pinned, 0x01010101);
}

// Nothing orders the second stream with the first.
bool unordered_streams() {
  Array<int> value(1);
  hipStream_t first = nullptr, second = nullptr;
  if (hipStreamCreate(&first) != hipSuccess || hipStreamCreate(&second) != hipSuccess) return false;
  int* const out = value.data();
  hipLaunchKernelGGL(add_one, dim3(1), dim3(1), 0, first, out);
  return hipMemsetAsync(out, 0, sizeof(int), second) == hipSuccess && launched() && same("the value", value[0], 0);
}

// The device isn't set: the kernel runs on another device than its memory's.
bool wrong_device() {
  int* memory = nullptr;
  if (hipSetDevice(1) != hipSuccess || hipMalloc(&memory, sizeof(int)) != hipSuccess) return false;
  return hipSetDevice(0) == hipSuccess && run_on(memory);
}

bool stream_of_another_device() {
  Array<int> value(1);
  hipStream_t stream = nullptr;
  if (hipSetDevice(1) != hipSuccess || hipStreamCreate(&stream) != hipSuccess) return false;
  return hipSetDevice(0) == hipSuccess && run_on(value.data(), stream);
}

__global__ void wait_for_each_other(unsigned* arrived) {
  if (threadIdx.x == 0) {
    atomicAdd(arrived, 1u);
    while (atomicAdd(arrived, 0u) < gridDim.x) gpusim::yield();
  }
}

// Twice as many blocks as the registers allow; threads and shared memory would allow them.
bool cooperative_beyond_registers() {
  int multiprocessors = 0;
  (void)hipDeviceGetAttribute(&multiprocessors, hipDeviceAttributeMultiprocessorCount, 0);
  Array<unsigned> arrived(1);
  unsigned* counter = arrived.data();
  void* arguments[] = {&counter};
  const dim3 grid(static_cast<unsigned>(2 * multiprocessors));
  (void)hipLaunchCooperativeKernel(wait_for_each_other, grid, dim3(256), arguments, 0, nullptr);
  return launched();
}

// More than the smallest GPU allows for a block; it fits larger ones.
bool shared_memory_of_larger_devices() {
  constexpr int bytes = 80 * 1024;
  Array<int> out(1);
  (void)hipFuncSetAttribute(write_shared, hipFuncAttributeMaxDynamicSharedMemorySize, bytes);
  hipLaunchKernelGGL(write_shared, dim3(1), dim3(1), bytes, nullptr, out.data(), 0);
  return launched();
}

// The grid has as many rows as the batch.
bool grid_beyond_limits() {
  hipLaunchKernelGGL(write_global, dim3(1, 70000), dim3(1), 0, nullptr, static_cast<float*>(nullptr));
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
      {"host_pointer", host_pointer},
      {"host_heap", host_heap},
      {"host_pointer_within", host_pointer_within},
      {"read_on_host", read_on_host},
      {"wrong_copy", wrong_copy},
      {"copy_beyond", copy_beyond},
      {"freed_memory", freed_memory},
      {"freed_too_early", freed_too_early},
      {"changed_too_early", changed_too_early},
      {"read_too_early", read_too_early},
      {"unordered_streams", unordered_streams},
      {"wrong_device", wrong_device},
      {"stream_of_another_device", stream_of_another_device},
      {"cooperative_beyond_registers", cooperative_beyond_registers},
      {"shared_memory_of_larger_devices", shared_memory_of_larger_devices},
      {"grid_beyond_limits", grid_beyond_limits},
  };
  return cases;
}
