// The scalar version of the tensor cores' product, from the hipified cuda/: the bits that it drops, and the accuracy of
// a long sum.
#include "persistent_hip.cuh"

#include <cmath>
#include <cstring>

#include "selftest.h"

namespace fourfold::gpu {
namespace {

enum class Sum { by_tensor_cores, by_multiprocessor, as_a_tile };

__global__ void cut_off(float* out) {
  const float terms[4] = {1.75f, 1.75f, 1.75f, -0.5f};
  const float infinite[2] = {INFINITY, 1.0f};
  out[0] = cut_off_sum(16777216.0f, terms);
  out[1] = cut_off_sum(-16777216.0f, {-1.75f, -1.75f});
  out[2] = cut_off_sum(0.0f, {1.5f, 0.25f});
  out[3] = cut_off_sum(1.0f, infinite);
  out[4] = cut_off_sum(3.0f, {-3.0f, 0x1p-140f});
}

bool cuts_off() {
  Array<float> out(5);
  hipLaunchKernelGGL(cut_off, dim3(1), dim3(1), 0, nullptr, out.data());
  // The last place of these float32 numbers is 2, and tensor cores keep one more place.
  return launched() && same("the sum", out[0], 16777218.0) && same("below zero", out[1], -16777218.0) &&
         same("an exact sum", out[2], 1.75) && same("an infinite sum", out[3], INFINITY) &&
         same("what is too small", out[4], 0);
}

FOURFOLD_FN Slot all_of(float value) {
  Slot slot;
  for (int w = 0; w < 4; ++w) slot.word[w] = as_bits(value);
  return slot;
}

// With all bits of TF32, so that the products have twice as many.
FOURFOLD_ANYWHERE float factor(int chunk) { return 1.0f + static_cast<float>(chunk * 37 % 1024 | 1) / 1024.0f; }

// As in a persistent kernel, which keeps this many chunks of a row of weights in registers.
constexpr int tile_chunks = 32;

template <Sum how>
__global__ void long_sum(const float* row, int depth, float other, float* out) {
  float sum[1][4] = {};
  if constexpr (how == Sum::as_a_tile) {
    Slot weights[tile_chunks][1];
    for (Slot(&column)[1] : weights) column[0] = all_of(other);
    const int lane = static_cast<int>(threadIdx.x);
    float* const sums = shared_memory<float>();
    for (int k = lane % 4 * slot_size<float>; k < depth; k += tile_chunks * chunk_depth<float>) {
      multiply_rows<float, Rounding::none>(sums, 1, k, depth, weights, [&](int) { return Rows<float>{{row, row}, {}}; });
      __syncthreads();
      for (int n = 0; n < 4; ++n) sum[0][n] += sums[threadIdx.x * 4 + n];
      __syncthreads();
    }
  } else {
    for (int k = 0; k < depth; k += chunk_depth<float>) {
      const Slot slot = all_of(row[k]), column = all_of(other);
      float part[4] = {};
      multiply_words<float>(how == Sum::by_tensor_cores ? sum[0] : part, slot, slot, column);
      for (int n = 0; n < 4; ++n) sum[0][n] += part[n];
    }
  }
  for (int n = 0; n < 4; ++n) out[threadIdx.x * 4 + n] = sum[0][n];
}

// A sum of 4096 products is as accurate as in float32, whose additions round to nearest, so that errors cancel.
template <Sum how>
bool keeps_digits() {
  constexpr int chunks = 256;
  const float other = how == Sum::as_a_tile ? 0.7f : 1365.0f / 1024.0f;  // a tile splits what TF32 can't represent
  Array<float> row(chunks * chunk_depth<float>), out(4 * group_size);
  double wanted = 0;
  for (size_t k = 0; k < row.size(); ++k) {
    row[k] = factor(static_cast<int>(k) / chunk_depth<float>);
    wanted += double{row[k]} * other;
  }
  constexpr size_t sums = tile_values * sizeof(float);
  hipLaunchKernelGGL(long_sum<how>, dim3(1), dim3(group_size), sums, nullptr, row.data(), static_cast<int>(row.size()),
                     other, out.data());
  bool right = launched();
  for (size_t k = 0; k < out.size() && right; ++k) {
    const double error = std::fabs(out[k] - wanted) / wanted;
    right = error < 2e-6;
    if (!right) std::fprintf(stderr, "the sum is off by %.1e\n", error);
  }
  return right;
}

}  // namespace
}  // namespace fourfold::gpu

int main(int count, char** words) {
  using namespace fourfold::gpu;
  const Case cases[] = {
      {"cuts_off", cuts_off},
      {"by_tensor_cores", keeps_digits<Sum::by_tensor_cores>},
      {"by_multiprocessor", keeps_digits<Sum::by_multiprocessor>},
      {"as_a_tile", keeps_digits<Sum::as_a_tile>},
  };
  for (const Case& it : cases) {
    if (count == 2 && std::strcmp(words[1], it.name) == 0) return it.run() ? 0 : 1;
  }
  std::fprintf(stderr, "tensor_cores: no such case\n");
  return 2;
}
