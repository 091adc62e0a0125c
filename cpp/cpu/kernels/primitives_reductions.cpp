// Reductions of pointwise programs as primitives.
#include "cpu/kernels/reductions.h"

namespace fourfold::cpu::FOURFOLD_CPU_LEVEL {
namespace {

template <typename R, typename T>
void run(Frame& frame, int64_t n, const Instruction& at) {
  reduce_rows<R, T>(frame, n, frame.slots[at.in[0]], frame.slots[at.out].data);
}

template <typename R, typename T>
void combine(Frame& frame, int64_t n, const Instruction& at) {
  T* to = static_cast<T*>(frame.slots[at.out].data);
  const T* from = static_cast<const T*>(frame.slots[at.in[0]].data);
  for (int64_t k = 0; k < n; ++k) to[k] = combined<R, T>(to[k], from[k]);
}

template <typename F>
Primitive* visit_reduction(Operation op, const F& f) {
  switch (op) {
    case Operation::sum:
    case Operation::sum_float64: return f(Sum());
    case Operation::prod: return f(Prod());
    case Operation::amax: return f(Amax());
    case Operation::amin: return f(Amin());
    default: return nullptr;
  }
}

template <typename T>
void add_to_columns(Frame& frame, int64_t n, const Instruction& at) {
  add_rows<T>(frame, n, frame.slots[at.in[0]], static_cast<double*>(frame.slots[at.out].data));
}

}  // namespace

Primitive* column_sum_primitive(Type type) { return type == Type::float32 ? add_to_columns<float> : add_to_columns<double>; }

Primitive* reduction_primitive(Operation op, Type type) {
  if (type == Type::boolean) return op == Operation::all ? run<All, bool> : run<Any, bool>;
  if (op == Operation::sum_float64) return run<WideSum, float>;
  return visit_reduction(op, [&](auto r) {
    using R = decltype(r);
    return type == Type::int32     ? run<R, int32_t>
           : type == Type::int64   ? run<R, int64_t>
           : type == Type::float32 ? run<R, float> : run<R, double>;
  });
}

Primitive* combine_primitive(Operation op, Type type) {
  if (type == Type::boolean) return op == Operation::all ? combine<All, bool> : combine<Any, bool>;
  return visit_reduction(op, [&](auto r) {
    using R = decltype(r);
    return type == Type::int32     ? combine<R, int32_t>
           : type == Type::int64   ? combine<R, int64_t>
           : type == Type::float32 ? combine<R, float> : combine<R, double>;
  });
}

}  // namespace fourfold::cpu::FOURFOLD_CPU_LEVEL
