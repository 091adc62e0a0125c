// Correct kernels: they give the right results in every order of threads and blocks, with warps of 32 and of 64.
#include "selftest.h"

namespace {

__global__ void add_one_to_each(const float* in, float* out, int64_t size) {
  const int64_t k = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (k < size) out[k] = in[k] + 1.0f;
}

bool elementwise() {
  Array<float> in(1000), out(1000);
  for (size_t k = 0; k < in.size(); ++k) in[k] = static_cast<float>(k);
  hipLaunchKernelGGL(add_one_to_each, dim3(4), dim3(256), 0, nullptr, in.data(), out.data(), in.size());
  bool right = launched();
  for (size_t k = 0; k < in.size(); ++k) right = right && same("out", out[k], k + 1.0);
  return right;
}

template <typename T, int step_factor>
__global__ void block_sum(const T* in, T* out, int size) {
  HIP_DYNAMIC_SHARED(T, partial)
  const unsigned t = threadIdx.x;
  const int k = static_cast<int>(blockIdx.x * blockDim.x + t);
  partial[t] = k < size ? in[k] : T(0);
  __syncthreads();
  for (unsigned width = blockDim.x / 2; width > 0; width /= step_factor) {
    if (t < width) partial[t] += partial[t + width];
    __syncthreads();
  }
  if (t == 0) out[blockIdx.x] = partial[0];
}

bool reduction() {
  Array<float> in(1000), out(4);
  for (size_t k = 0; k < in.size(); ++k) in[k] = static_cast<float>(k % 7);
  hipLaunchKernelGGL((block_sum<float, 2>), dim3(4), dim3(256), 256 * sizeof(float), 0, in.data(), out.data(), 1000);
  bool right = launched();
  for (size_t b = 0; b < out.size(); ++b) {
    double sum = 0;
    for (size_t k = b * 256; k < std::min<size_t>(b * 256 + 256, in.size()); ++k) sum += in[k];
    right = right && same("the block's sum", out[b], sum);
  }
  return right;
}

// [11, threads]: the result of each shuffle; the host checks them against the definitions.
__global__ void shuffles(int* out) {
  const int t = static_cast<int>(threadIdx.x), n = static_cast<int>(blockDim.x);
  int row = 0;
  const auto keep = [&](int value) { out[row++ * n + t] = value; };
  keep(__shfl_sync(all_lanes, t, 3));
  keep(__shfl_sync(all_lanes, t, 9, 8));
  keep(__shfl_up_sync(all_lanes, t, 2u));
  keep(__shfl_up_sync(all_lanes, t, 3u, 16));
  keep(__shfl_down_sync(all_lanes, t, 5u));
  keep(__shfl_down_sync(all_lanes, t, 1u, 4));
  keep(__shfl_xor_sync(all_lanes, t, 1));
  keep(__shfl_xor_sync(all_lanes, t, 16));
  keep(static_cast<int>(__shfl_xor(static_cast<double>(t), 4)));
  keep(static_cast<int>(__shfl_down(static_cast<long long>(t), 1u)));
  // Half of a warp at a time, in divergent code, with its mask.
  const unsigned long long low_half = (1ull << (warpSize / 2)) - 1;
  if (t % warpSize < warpSize / 2) keep(__shfl_sync(low_half, t, 1));
  else keep(__shfl_sync(low_half << (warpSize / 2), t, warpSize - 1));
}

bool shuffle() {
  constexpr int n = 128;
  const int w = warpSize;
  Array<int> out(11 * n);
  hipLaunchKernelGGL(shuffles, dim3(1), dim3(n), 0, nullptr, out.data());
  bool right = launched();
  for (int t = 0; t < n; ++t) {
    const int lane = t % w, warp = t - lane;
    const int wanted[11] = {
        warp + 3,
        t / 8 * 8 + 1,
        lane < 2 ? t : t - 2,
        t % 16 < 3 ? t : t - 3,
        lane + 5 < w ? t + 5 : t,
        t % 4 < 3 ? t + 1 : t,
        t ^ 1,
        t ^ 16,
        t ^ 4,
        lane + 1 < w ? t + 1 : t,
        lane < w / 2 ? warp + 1 : warp + w - 1,
    };
    for (int row = 0; row < 11; ++row) right = right && same("a shuffle", out[row * n + t], wanted[row]);
  }
  return right;
}

__global__ void votes(unsigned long long* ballots, int* counts) {
  const int t = static_cast<int>(threadIdx.x);
  if (t >= 100) return;
  const int lane = t % warpSize;
  const unsigned long long odd = __ballot_sync(all_lanes, t % 2);
  const bool agreed = __any_sync(all_lanes, lane == 1) && !__all_sync(all_lanes, lane == 1) && __all(1) && !__any(0);
  if (lane == 0) ballots[t / warpSize] = agreed ? odd : 0;
  const int count = __syncthreads_count(t % 3 == 0);
  const int any = __syncthreads_or(t == 99), all = __syncthreads_and(t < 100);
  const int none = __syncthreads_or(t > 99), not_all = __syncthreads_and(t < 99);
  if (t == 0) counts[0] = count, counts[1] = any + all, counts[2] = none + not_all;
}

bool ballot() {
  Array<unsigned long long> ballots(128 / warpSize);
  Array<int> counts(3);
  hipLaunchKernelGGL(votes, dim3(1), dim3(128), 0, nullptr, ballots.data(), counts.data());
  bool right = launched() && same("the count", counts[0], 34) && same("or, and", counts[1], 2) &&
               same("or, and of none", counts[2], 0);
  for (size_t w = 0; w < ballots.size(); ++w) {
    unsigned long long wanted = 0;
    for (int lane = 1; lane < warpSize; lane += 2) {
      if (static_cast<int>(w) * warpSize + lane < 100) wanted |= 1ull << lane;
    }
    right = right && same("the ballot", static_cast<double>(ballots[w]), static_cast<double>(wanted));
  }
  return right;
}

// Threads beyond the row leave before the barriers, which wait only for the others.
__global__ void leave_early(float* out, int size) {
  HIP_DYNAMIC_SHARED(float, row)
  const int t = static_cast<int>(threadIdx.x);
  if (t >= size) return;
  row[t] = static_cast<float>(t);
  __syncthreads();
  const float mirrored = row[size - 1 - t];
  __syncthreads();
  row[t] = mirrored;
  __syncthreads();
  out[t] = row[(t + 1) % size] + __shfl_down_sync(all_lanes, 0.0f, 1u);
}

bool early_exit() {
  Array<float> out(70);
  hipLaunchKernelGGL(leave_early, dim3(1), dim3(128), 70 * sizeof(float), nullptr, out.data(), 70);
  bool right = launched();
  for (int t = 0; t < 69; ++t) right = right && same("out", out[t], 68 - t);
  return right;
}

// Lanes of a warp exchange values through shared memory.
__global__ void warp_neighbours(int* out) {
  HIP_DYNAMIC_SHARED(int, values)
  const unsigned t = threadIdx.x;
  const unsigned first = t / warpSize * warpSize;
  for (int step = 0; step < 3; ++step) {
    values[t] = static_cast<int>(t) + step;
    __syncwarp();
    const int next = values[first + (t + 1) % warpSize];
    __syncwarp();
    out[t] = next;
  }
}

bool warp_barrier() {
  Array<int> out(128);
  hipLaunchKernelGGL(warp_neighbours, dim3(1), dim3(128), 128 * sizeof(int), nullptr, out.data());
  bool right = launched();
  for (int t = 0; t < 128; ++t) {
    const int first = t / warpSize * warpSize;
    right = right && same("the neighbour", out[t], first + (t + 1) % warpSize + 2);
  }
  return right;
}

// A product of a [4, 8] and a [8, 4] matrix by one warp in one exchange, like a matrix instruction.
struct Fragment {
  float a, b;
};

__global__ void matrix_product(const float* a, const float* b, float* c) {
  const int lane = static_cast<int>(threadIdx.x);
  const Fragment mine = lane < 32 ? Fragment{a[lane], b[lane]} : Fragment{0, 0};
  const gpusim::WarpView lanes = gpusim::warp_exchange(&mine, sizeof(mine));
  float sum = 0;
  for (int k = 0; k < 8; ++k) {
    sum += lanes.get<Fragment>(lane / 4 % 4 * 8 + k).a * lanes.get<Fragment>(k * 4 + lane % 4).b;
  }
  if (lane < 16) c[lane] = sum;
}

bool exchange() {
  Array<float> a(32), b(32), c(16);
  for (int k = 0; k < 32; ++k) a[k] = static_cast<float>(k % 5), b[k] = static_cast<float>(k % 11);
  hipLaunchKernelGGL(matrix_product, dim3(1), dim3(warpSize), 0, nullptr, a.data(), b.data(), c.data());
  bool right = launched();
  for (int i = 0; i < 16; ++i) {
    double sum = 0;
    for (int k = 0; k < 8; ++k) sum += double{a[i / 4 * 8 + k]} * b[k * 4 + i % 4];
    right = right && same("the product", c[i], sum);
  }
  return right;
}

__global__ void count_in(int* counters, unsigned* bits, float* sum, unsigned long long* compared) {
  const int k = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  atomicAdd(&counters[k % 4], 1);
  atomicMax(&counters[4], k);
  atomicMin(&counters[5], -k);
  atomicOr(bits, 1u << (k % 32));
  atomicAdd(sum, 0.5f);
  unsigned long long seen = atomicAdd(compared, 0);
  for (;;) {
    const unsigned long long was = atomicCAS(compared, seen, seen + 1);
    if (was == seen) break;
    seen = was;
  }
}

bool atomics() {
  Array<int> counters(6);
  Array<unsigned> bits(1);
  Array<float> sum(1);
  Array<unsigned long long> compared(1);
  hipLaunchKernelGGL(count_in, dim3(3), dim3(64), 0, nullptr, counters.data(), bits.data(), sum.data(),
                     compared.data());
  bool right = launched() && same("the largest", counters[4], 191) && same("the smallest", counters[5], -191) &&
               same("the bits", bits[0], 0xFFFFFFFFu) && same("the sum", sum[0], 96) &&
               same("the compared", static_cast<double>(compared[0]), 192);
  for (int k = 0; k < 4; ++k) right = right && same("the counter", counters[k], 48);
  return right;
}

// The last block to finish adds up the results of all: a fence on each side of a relaxed atomic.
__global__ void sum_by_last_block(const float* in, float* partial, unsigned* finished, float* out) {
  HIP_DYNAMIC_SHARED(unsigned, shared)
  const unsigned t = threadIdx.x;
  if (t == 0) {
    float sum = 0;
    for (unsigned k = 0; k < blockDim.x; ++k) sum += in[blockIdx.x * blockDim.x + k];
    partial[blockIdx.x] = sum;
    __threadfence();
    shared[0] = atomicAdd(finished, 1u);
  }
  __syncthreads();
  if (shared[0] != gridDim.x - 1) return;
  __threadfence();
  if (t == 0) {
    float sum = 0;
    for (unsigned b = 0; b < gridDim.x; ++b) sum += partial[b];
    *out = sum;
  }
}

bool last_block() {
  Array<float> in(6 * 32, 0.25f), partial(6), out(1);
  Array<unsigned> finished(1);
  hipLaunchKernelGGL(sum_by_last_block, dim3(6), dim3(32), sizeof(unsigned), nullptr, in.data(), partial.data(),
                     finished.data(), out.data());
  return launched() && same("the sum", out[0], 48);
}

__device__ void pause() { gpusim::yield(); }

__device__ void grid_barrier(unsigned* arrived, unsigned round) {
  __syncthreads();
  if (threadIdx.x == 0) {
    __hip_atomic_fetch_add(arrived, 1u, __ATOMIC_RELEASE, __HIP_MEMORY_SCOPE_AGENT);
    while (__hip_atomic_load(arrived, __ATOMIC_ACQUIRE, __HIP_MEMORY_SCOPE_AGENT) < round * gridDim.x) pause();
  }
  __syncthreads();
}

// Each step reads what other blocks wrote in the previous step.
__global__ void rotate(int* values, int* other, unsigned* arrived, int steps) {
  const int size = static_cast<int>(gridDim.x * blockDim.x);
  const int k = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  for (int step = 1; step <= steps; ++step) {
    other[k] = values[(k + 100) % size] + 1;
    grid_barrier(arrived, static_cast<unsigned>(step));
    int* const was = values;
    values = other;
    other = was;
  }
}

bool cooperative() {
  constexpr int size = 8 * 64;
  int steps = 6;
  Array<int> values(size), other(size);
  Array<unsigned> arrived(1);
  for (int k = 0; k < size; ++k) values[k] = k;
  int *to = values.data(), *from = other.data();
  unsigned* counter = arrived.data();
  void* arguments[] = {&to, &from, &counter, &steps};
  if (hipLaunchCooperativeKernel(rotate, dim3(8), dim3(64), arguments, 0, nullptr) != hipSuccess) return false;
  bool right = true;
  for (int k = 0; k < size; ++k) right = right && same("the value", values[k], (k + 600) % size + 6);
  return right;
}

__global__ void indices(int* out) {
  const dim3 b = blockDim;
  const uint3 t = threadIdx;
  const unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  const unsigned thread = (t.z * b.y + t.y) * b.x + t.x;
  atomicAdd(&out[block * (b.x * b.y * b.z) + thread], static_cast<int>(thread));
}

bool three_dimensions() {
  Array<int> out(24 * 60);
  hipLaunchKernelGGL(indices, dim3(2, 3, 4), dim3(3, 4, 5), 0, nullptr, out.data());
  bool right = launched();
  for (int k = 0; k < 24 * 60; ++k) right = right && same("the index", out[k], k % 60);
  return right;
}

__global__ void arithmetic(float* out) {
  const float4 v = make_float4(1, 2, 3, 4);
  *reinterpret_cast<float4*>(out) = v;
  out[4] = __expf(0.0f) + fmaf(2.0f, 3.0f, 4.0f) + __fdividef(9.0f, 3.0f) + rsqrtf(0.25f) + expm1f(0.0f) + tanhf(0.0f);
  out[5] = max(1.5f, 2) + min(3, 4u) + max(NAN, 1.0f);
  out[6] = __uint_as_float(__float_as_uint(8.0f)) + static_cast<float>(__popcll(0xF0F0ull) + __clz(1) + __ffs(8));
}

bool functions() {
  Array<float> out(7);
  hipLaunchKernelGGL(arithmetic, dim3(1), dim3(1), 0, nullptr, out.data());
  return launched() && same("a vector's last", out[3], 4) && same("functions", out[4], 16) &&
         same("min and max", out[5], 6) && same("bits", out[6], 51);
}

}  // namespace

const std::vector<Case>& right_cases() {
  static const std::vector<Case> cases = {
      {"elementwise", elementwise},
      {"reduction", reduction},
      {"shuffle", shuffle},
      {"ballot", ballot},
      {"early_exit", early_exit},
      {"warp_barrier", warp_barrier},
      {"exchange", exchange},
      {"atomics", atomics},
      {"last_block", last_block},
      {"cooperative", cooperative},
      {"three_dimensions", three_dimensions},
      {"functions", functions},
  };
  return cases;
}
