// out = f(inputs…), element by element, on tensors that broadcast to one shape.
//
// A Function has: Value, its compute type; operator()(Value…) -> Value.
#pragma once

#include <utility>

#include "device.cuh"
#include "launch.cuh"
#include "ops/elementwise.h"
#include "ops/formula.h"

namespace fourfold::gpu {

constexpr int elementwise_threads = 256;
// The maximum number of axes of a kernel. Tensors with more unmergeable axes are processed slice by slice.
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

// A thread has one vector: more in flight are slower, by up to 40 % in 16 bits on an H100. All operands are contiguous
// and aligned to 16 bytes, or one value for all (its bit in `single`).
template <typename T, typename Function, size_t... k>
__global__ void __launch_bounds__(elementwise_threads)
    vectorized_elementwise(int64_t n, Operands<sizeof...(k) + 1> operands, unsigned single, Function f,
                       std::index_sequence<k...>) {
  using Value = typename Function::Value;
  constexpr int size = vector_size<T>;
  constexpr int inputs = sizeof...(k);
  const int64_t at = (blockIdx.x * int64_t(blockDim.x) + threadIdx.x) * size;
  AlignedVector<T, size> loaded[inputs];
#pragma unroll
  for (int input = 0; input < inputs; ++input) {
    const T* from = reinterpret_cast<const T*>(operands.data[input + 1]);
    if ((single >> input & 1) != 0) {
#pragma unroll
      for (int e = 0; e < size; ++e) loaded[input].v[e] = from[0];
    } else if (at + size <= n) {
      loaded[input] = *reinterpret_cast<const AlignedVector<T, size>*>(from + at);
    } else {
#pragma unroll
      for (int e = 0; e < size; ++e) loaded[input].v[e] = at + e < n ? from[at + e] : T();
    }
  }
  T* to = reinterpret_cast<T*>(operands.data[0]);
  AlignedVector<T, size> result;
#pragma unroll
  for (int e = 0; e < size; ++e) result.v[e] = static_cast<T>(f(static_cast<Value>(loaded[k].v[e])...));
  if (at + size <= n) {
    *reinterpret_cast<AlignedVector<T, size>*>(to + at) = result;
  } else {
#pragma unroll
    for (int e = 0; e < size && at + e < n; ++e) to[at + e] = result.v[e];
  }
}

// Any strides. Index has 32 bits if that is enough, because its divisions take a fraction of the time.
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
void map_vectorized(Place place, int64_t n, const Operands<sizeof...(k) + 1>& operands, unsigned single, const Function& f,
                std::index_sequence<k...> inputs) {
  const int64_t per_block = int64_t(elementwise_threads) * vector_size<T>;
  launch(place, {blocks_for(n, per_block), elementwise_threads},
         vectorized_elementwise<T, Function, k...>, n, operands, single, f, inputs);
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

template <typename T>
bool is_vectorizable(const Elementwise& job, unsigned* single) {
  if (job.axes > 1) return false;
  *single = 0;  // also for a single element: `out` may alias it, so only one thread may read it
  for (int k = 0; k <= job.inputs; ++k) {
    const int64_t stride = job.axes == 0 ? 1 : job.axis[0].stride[k];
    const void* address = k == 0 ? job.out : static_cast<const void*>(job.in[k - 1]);
    if (k > 0 && stride == 0) {
      *single |= 1u << (k - 1);
    } else if (stride != 1 || reinterpret_cast<uintptr_t>(address) % 16 != 0) {
      return false;
    }
  }
  return true;
}

// Maps the axes from `outer` on, with one launch for each index of the axes before.
template <typename T, typename Function, size_t... k>
void map_slices(const Elementwise& job, int outer, Operands<sizeof...(k) + 1> at, int64_t n, const Function& f,
                std::index_sequence<k...> inputs) {
  const int count = job.axes - outer;
  if (count > most_axes) {
    const Elementwise::Axis& axis = job.axis[outer];
    for (int64_t index = 0; index < axis.size; ++index) {
      map_slices<T>(job, outer + 1, at, n / axis.size, f, inputs);
      for (int operand = 0; operand <= job.inputs; ++operand) {
        at.data[operand] += axis.stride[operand] * job.element_size;
      }
    }
    return;
  }
  Axes<sizeof...(k) + 1> inner{};
  inner.count = count;
  for (int d = 0; d < count; ++d) {
    inner.size[d] = job.axis[outer + d].size;
    for (int operand = 0; operand <= job.inputs; ++operand) {
      inner.stride[d][operand] = job.axis[outer + d].stride[operand];
    }
  }
  map_strided<T>(job.place, n, at, inner, f, inputs);
}

// The const_cast is safe: kernels only read inputs.
template <size_t... k>
Operands<sizeof...(k) + 1> operands_of(const Elementwise& job, std::index_sequence<k...>) {
  return {{static_cast<char*>(job.out), static_cast<char*>(const_cast<void*>(static_cast<const void*>(job.in[k])))...}};
}

template <typename T, typename Function, size_t... k>
void map(const Elementwise& job, const Function& f, std::index_sequence<k...> inputs) {
  if (job.numel == 0) return;
  const auto operands = operands_of(job, inputs);
  unsigned single = 0;
  if (is_vectorizable<T>(job, &single)) {
    map_vectorized<T>(job.place, job.numel, operands, single, f, inputs);
  } else {
    map_slices<T>(job, 0, operands, job.numel, f, inputs);
  }
}

// A formula's function (ops/formula.h) as a Function.
template <typename Call, typename Formula, typename V>
struct Applied {
  using Value = V;
  Formula formula;
  template <typename... Inputs>
  FOURFOLD_FN Value operator()(Inputs... in) const {
    return Call::call(formula, in...);
  }
};

template <template <typename> typename Formula, typename Call>
void apply(const Elementwise& job) {
  const typename Call::Indices inputs;
  if constexpr (Formula<float>::of_integers) {
    const Applied<Call, Formula<uint64_t>, uint64_t> f{formula_of_integers<Formula>(job)};
    switch (job.kind) {
      case Kind::boolean: return map<bool>(job, f, inputs);
      case Kind::uint8: return map<uint8_t>(job, f, inputs);
      case Kind::int8: return map<int8_t>(job, f, inputs);
      case Kind::int16: return map<int16_t>(job, f, inputs);
      case Kind::int32: return map<int32_t>(job, f, inputs);
      case Kind::int64: return map<int64_t>(job, f, inputs);
      default: break;
    }
  }
  visit_floating(job.kind, [&](auto type) {
    using T = typename decltype(type)::type;
    using V = Compute<T>;
    const auto value = [](double scalar) { return static_cast<V>(scalar); };
    map<T>(job, Applied<Call, Formula<V>, V>{formula_of<Formula, V>(job, value)}, inputs);
  });
}

template <template <typename> typename Formula>
constexpr ElementwiseKernels kernels_of() {
  if constexpr (has_backward<Formula>) {
    return {apply<Formula, Forward<Formula>>, apply<Formula, Backward<Formula>>};
  } else {
    return {apply<Formula, Forward<Formula>>, nullptr};
  }
}

}  // namespace fourfold::gpu
