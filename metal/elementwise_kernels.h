// out = f(inputs…), element by element, on tensors that broadcast to one shape. T is the type in memory, V the compute
// type of Formula; scalars: the number of its scalars; Call selects its forward or backward. Absent inputs aren't read.
#pragma once

#include "math.h"

namespace fourfold {
#include "jobs.h"

// A formula's function takes as many values as it has inputs: only one of these overloads matches.
struct Forward {
  template <typename Formula, typename V>
  static auto call(Formula f, V a, V, V) -> decltype(f.forward(a)) { return f.forward(a); }
  template <typename Formula, typename V>
  static auto call(Formula f, V a, V b, V) -> decltype(f.forward(a, b)) { return f.forward(a, b); }
  template <typename Formula, typename V>
  static auto call(Formula f, V a, V b, V c) -> decltype(f.forward(a, b, c)) { return f.forward(a, b, c); }
};

struct Backward {
  template <typename Formula, typename V>
  static auto call(Formula f, V a, V, V) -> decltype(f.backward(a)) { return f.backward(a); }
  template <typename Formula, typename V>
  static auto call(Formula f, V a, V b, V) -> decltype(f.backward(a, b)) { return f.backward(a, b); }
  template <typename Formula, typename V>
  static auto call(Formula f, V a, V b, V c) -> decltype(f.backward(a, b, c)) { return f.backward(a, b, c); }
};

template <int count>
struct Scalars;

template <>
struct Scalars<0> {
  template <typename Formula, typename V>
  static Formula make(constant V*) { return Formula{}; }
};

template <>
struct Scalars<1> {
  template <typename Formula, typename V>
  static Formula make(constant V* scalar) { return Formula{scalar[0]}; }
};

template <>
struct Scalars<2> {
  template <typename Formula, typename V>
  static Formula make(constant V* scalar) { return Formula{scalar[0], scalar[1]}; }
};

// Contiguous operands, or one value for all. A thread computes several consecutive elements.
template <typename T, typename V, typename Formula, int scalars, typename Call>
[[kernel, max_total_threads_per_threadgroup(elementwise_threads)]] void dense_elementwise(
    device T* out [[buffer(0)]], device const T* a [[buffer(1)]], device const T* b [[buffer(2)]],
    device const T* c [[buffer(3)]], constant V* scalar [[buffer(4)]], constant DenseJob& job [[buffer(5)]],
    uint position [[thread_position_in_grid]]) {
  const Formula formula = Scalars<scalars>::template make<Formula>(scalar);
  const Index first = job.first + Index(position) * elements_per_thread;
  for (Index at = first; at < first + elements_per_thread && at < job.count; ++at) {
    const V x = V(a[at * job.step[0]]);
    const V y = job.inputs > 1 ? V(b[at * job.step[1]]) : V(0);
    const V z = job.inputs > 2 ? V(c[at * job.step[2]]) : V(0);
    out[at] = T(Call::call(formula, x, y, z));
  }
}

// Any strides. I has 32 bits if that is enough, because its divisions take a fraction of the time.
template <typename T, typename V, typename Formula, int scalars, typename Call, typename I>
[[kernel, max_total_threads_per_threadgroup(elementwise_threads)]] void strided_elementwise(
    device T* out [[buffer(0)]], device const T* a [[buffer(1)]], device const T* b [[buffer(2)]],
    device const T* c [[buffer(3)]], constant V* scalar [[buffer(4)]], constant StridedJob& job [[buffer(5)]],
    uint position [[thread_position_in_grid]]) {
  const Formula formula = Scalars<scalars>::template make<Formula>(scalar);
  Index offset[4] = {0, 0, 0, 0};
  I rest = I(job.first + Index(position));
  for (int d = job.axes - 1; d >= 0; --d) {
    const I size = I(job.size[d]);
    const Index index = Index(rest % size);
    rest /= size;
    for (int operand = 0; operand <= job.inputs; ++operand) offset[operand] += index * job.stride[d][operand];
  }
  const V x = V(a[offset[1]]);
  const V y = job.inputs > 1 ? V(b[offset[2]]) : V(0);
  const V z = job.inputs > 2 ? V(c[offset[3]]) : V(0);
  out[offset[0]] = T(Call::call(formula, x, y, z));
}

}  // namespace fourfold
