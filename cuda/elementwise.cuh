// out = f(inputs…), element by element, on tensors that broadcast to one shape.
//
// A Function gives: Value, the type it computes in; operator()(Value…) -> Value.
#pragma once

#include <utility>

#include "device.cuh"
#include "launch.cuh"
#include "ops/elementwise.h"

namespace fourfold::gpu {

constexpr int elementwise_threads = 256;
// Packs of 16 bytes that a thread has in flight: enough to cover the latency of memory at the occupancy of 256 threads.
constexpr int packs_in_flight = 4;
// Axes that a kernel steps through. Tensors with more that cannot be merged are walked over slice by slice.
constexpr int most_axes = 12;

template <int operands>
struct Operands {
  char* data[operands];
};

template <int operands>
struct Axes {
  int count;
  int64_t size[most_axes];
  int64_t stride[most_axes][operands];  // in elements; out's first
};

// All operands contiguous and on 16-byte boundaries, or one value for all (its bit in `single`).
template <typename T, typename Function, size_t... k>
__global__ void __launch_bounds__(elementwise_threads)
    packed_elementwise(int64_t n, Operands<sizeof...(k) + 1> operands, unsigned single, Function f,
                       std::index_sequence<k...>) {
  using Value = typename Function::Value;
  constexpr int size = pack_size<T>;
  constexpr int inputs = sizeof...(k);
  const int64_t first = (blockIdx.x * int64_t(packs_in_flight) * blockDim.x + threadIdx.x) * size;
  const int64_t step = int64_t(blockDim.x) * size;
  Pack<T, size> loaded[inputs][packs_in_flight];
#pragma unroll
  for (int input = 0; input < inputs; ++input) {
    const T* from = reinterpret_cast<const T*>(operands.data[input + 1]);
#pragma unroll
    for (int p = 0; p < packs_in_flight; ++p) {
      const int64_t at = first + p * step;
      if ((single >> input & 1) != 0) {
#pragma unroll
        for (int e = 0; e < size; ++e) loaded[input][p].v[e] = from[0];
      } else if (at + size <= n) {
        loaded[input][p] = *reinterpret_cast<const Pack<T, size>*>(from + at);
      } else {
#pragma unroll
        for (int e = 0; e < size; ++e) loaded[input][p].v[e] = at + e < n ? from[at + e] : T();
      }
    }
  }
  T* to = reinterpret_cast<T*>(operands.data[0]);
#pragma unroll
  for (int p = 0; p < packs_in_flight; ++p) {
    const int64_t at = first + p * step;
    Pack<T, size> result;
#pragma unroll
    for (int e = 0; e < size; ++e) result.v[e] = static_cast<T>(f(static_cast<Value>(loaded[k][p].v[e])...));
    if (at + size <= n) {
      *reinterpret_cast<Pack<T, size>*>(to + at) = result;
    } else {
#pragma unroll
      for (int e = 0; e < size && at + e < n; ++e) to[at + e] = result.v[e];
    }
  }
}

// Any strides. Index is 32 bits wide where that is enough: its divisions take a fraction of the time.
template <typename T, typename Index, typename Function, size_t... k>
__global__ void __launch_bounds__(elementwise_threads)
    strided_elementwise(int64_t n, Operands<sizeof...(k) + 1> operands, Axes<sizeof...(k) + 1> axes, Function f,
                        std::index_sequence<k...>) {
  using Value = typename Function::Value;
  const int64_t at = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
  if (at >= n) return;
  int64_t offset[sizeof...(k) + 1] = {};
  Index rest = static_cast<Index>(at);
  for (int d = axes.count - 1; d >= 0; --d) {
    const Index size = static_cast<Index>(axes.size[d]);
    const Index index = rest % size;
    rest /= size;
#pragma unroll
    for (int operand = 0; operand <= static_cast<int>(sizeof...(k)); ++operand) {
      offset[operand] += static_cast<int64_t>(index) * axes.stride[d][operand];
    }
  }
  T* to = reinterpret_cast<T*>(operands.data[0]) + offset[0];
  *to = static_cast<T>(f(static_cast<Value>(reinterpret_cast<const T*>(operands.data[k + 1])[offset[k + 1]])...));
}

inline int64_t blocks_for(int64_t n, int64_t per_block) { return (n + per_block - 1) / per_block; }

template <typename T, typename Function, size_t... k>
void map_packed(Place place, int64_t n, const Operands<sizeof...(k) + 1>& operands, unsigned single, const Function& f,
                std::index_sequence<k...> inputs) {
  const int64_t per_block = int64_t(elementwise_threads) * packs_in_flight * pack_size<T>;
  launch(place, {blocks_for(n, per_block), elementwise_threads},
         packed_elementwise<T, Function, k...>, n, operands, single, f, inputs);
}

template <typename T, typename Function, size_t... k>
void map_strided(Place place, int64_t n, const Operands<sizeof...(k) + 1>& operands,
                 const Axes<sizeof...(k) + 1>& axes, const Function& f, std::index_sequence<k...> inputs) {
  const Grid grid{blocks_for(n, elementwise_threads), elementwise_threads};
  if (n < (int64_t(1) << 31)) {
    launch(place, grid, strided_elementwise<T, uint32_t, Function, k...>, n, operands, axes, f, inputs);
  } else {
    launch(place, grid, strided_elementwise<T, uint64_t, Function, k...>, n, operands, axes, f, inputs);
  }
}

template <typename T, size_t inputs>
bool is_packed(const Elementwise<inputs>& operands, unsigned* single) {
  if (operands.axes().size() > 1) return false;
  const auto addresses = operands.addresses();
  *single = 0;  // also where there is one element, which out may overwrite: no other thread may read it
  for (size_t k = 0; k <= inputs; ++k) {
    const int64_t stride = operands.axes().empty() ? 1 : operands.axes()[0].stride[k];
    if (k > 0 && stride == 0) {
      *single |= 1u << (k - 1);
    } else if (stride != 1 || reinterpret_cast<uintptr_t>(addresses[k]) % 16 != 0) {
      return false;
    }
  }
  return true;
}

// The axes from `outer` on by one launch for each index of those before it.
template <typename T, size_t inputs, typename Function>
void map_slices(const Elementwise<inputs>& operands, size_t outer, Operands<inputs + 1> at, int64_t n,
                const Function& f) {
  const auto& axes = operands.axes();
  if (axes.size() - outer > most_axes) {
    for (int64_t index = 0; index < axes[outer].size; ++index) {
      map_slices<T>(operands, outer + 1, at, n / axes[outer].size, f);
      for (size_t k = 0; k <= inputs; ++k) at.data[k] += axes[outer].stride[k] * operands.element_size();
    }
    return;
  }
  Axes<inputs + 1> inner{};
  inner.count = static_cast<int>(axes.size() - outer);
  for (size_t d = outer; d < axes.size(); ++d) {
    inner.size[d - outer] = axes[d].size;
    for (size_t k = 0; k <= inputs; ++k) inner.stride[d - outer][k] = axes[d].stride[k];
  }
  map_strided<T>(operands.place(), n, at, inner, f, std::make_index_sequence<inputs>());
}

template <typename T, size_t inputs, typename Function>
void map(const Elementwise<inputs>& operands, const Function& f) {
  if (operands.numel() == 0) return;
  Operands<inputs + 1> data;
  const auto addresses = operands.addresses();
  for (size_t k = 0; k <= inputs; ++k) data.data[k] = addresses[k];
  unsigned single = 0;
  if (is_packed<T>(operands, &single)) {
    map_packed<T>(operands.place(), operands.numel(), data, single, f, std::make_index_sequence<inputs>());
  } else {
    map_slices<T>(operands, 0, data, operands.numel(), f);
  }
}

}  // namespace fourfold::gpu
