// The floating-point functions of programs: the elementary ones for one native vector, `exp_float32` and so on, and all
// of them for arrays. In libfourfold they are in the CPU levels' namespaces. scripts/bitcode.py compiles the former to LLVM
// bitcode, where their names are `fourfold_exp_float32` and so on.
#include "cpu/kernels/operations.h"
#ifndef FOURFOLD_BITCODE
#include "cpu/kernels/vector_functions.h"
#endif

namespace fourfold::cpu::FOURFOLD_CPU_LEVEL {
namespace {

template <typename T>
struct Registers;

#if defined(CPU_CAPABILITY_AVX512)
#define FOURFOLD_HAS_VECTORS
template <>
struct Registers<float> { using Vector = __m512; };
template <>
struct Registers<double> { using Vector = __m512d; };
#elif defined(CPU_CAPABILITY_AVX2)
#define FOURFOLD_HAS_VECTORS
template <>
struct Registers<float> { using Vector = __m256; };
template <>
struct Registers<double> { using Vector = __m256d; };
#elif defined(__aarch64__)
#define FOURFOLD_HAS_VECTORS
template <>
struct Registers<float> { using Vector = float32x4_t; };
template <>
struct Registers<double> { using Vector = float64x2_t; };
#endif

#ifdef FOURFOLD_HAS_VECTORS
template <typename T>
using Native = typename Registers<T>::Vector;
static_assert(sizeof(Native<float>) == sizeof(Vectorized<float>) && sizeof(Native<double>) == sizeof(Vectorized<double>));

template <Operation op, typename T, typename... V>
FOURFOLD_FN Native<T> apply(V... v) { return Vectorized<T>(Of<op>::of(Vectorized<T>(v)...)); }
#endif

}  // namespace

#ifdef FOURFOLD_HAS_VECTORS
#ifdef FOURFOLD_BITCODE
#define FOURFOLD_NAMED(name, type) extern "C" __attribute__((visibility("default"))) Native<type> fourfold_##name
#else
#define FOURFOLD_NAMED(name, type) static Native<type> name
#endif

#define FOURFOLD_FUNCTION_1(operation, name, T) \
  FOURFOLD_NAMED(name, T)(Native<T> x) { return apply<Operation::operation, T>(x); }
#define FOURFOLD_FUNCTION_2(operation, name, T) \
  FOURFOLD_NAMED(name, T)(Native<T> x, Native<T> y) { return apply<Operation::operation, T>(x, y); }
#define FOURFOLD_FUNCTIONS(operation, operands, rule, cost)           \
  FOURFOLD_FUNCTION_##operands(operation, operation##_float32, float) \
  FOURFOLD_FUNCTION_##operands(operation, operation##_float64, double)
FOURFOLD_ELEMENTARY(FOURFOLD_FUNCTIONS)
#endif

#ifndef FOURFOLD_BITCODE
namespace {

template <typename F>
uintptr_t address(F* function) { return reinterpret_cast<uintptr_t>(function); }

template <typename T>
FOURFOLD_FN Vectorized<T> vector_at(const Operand& from, int64_t k, int64_t count) {
  const T* const data = static_cast<const T*>(from.data) + k * from.step;
  return count == Vectorized<T>::size() ? Vectorized<T>::loadu(data) : Vectorized<T>::loadu(data, count);
}

template <typename T, Operation op, size_t... operand>
FOURFOLD_FN void map(int64_t n, const Operand* from, T* to, std::index_sequence<operand...>) {
  constexpr int64_t size = Vectorized<T>::size();
  for (int64_t k = 0; k < n; k += size) {
    const int64_t count = n - k < size ? n - k : size;
    const Vectorized<T> result(Of<op>::of(vector_at<T>(from[operand], k, count)...));
    count == size ? result.store(to + k) : result.store(to + k, static_cast<int>(count));
  }
}

template <typename T, Operation op>
void map(int64_t n, const Operand* from, void* to) {
  map<T, op>(n, from, static_cast<T*>(to), std::make_index_sequence<program::describe(op).operands>());
}

template <typename T>
ArrayFunction* find(Operation op) {
  return visit_operation<ArrayFunction>(op, []<Operation one>() -> ArrayFunction* { return map<T, one>; });
}

// One vector of 16-bit values gives two of float32.
template <typename T>
void widen(int64_t n, const Operand* from, void* to) {
  float* const out = static_cast<float*>(to);
  constexpr int64_t size = Floats::size();
  for (int64_t k = 0; k < n; k += step_size<T>) {
    const int64_t count = n - k < step_size<T> ? n - k : step_size<T>;
    const Step<T> step = load(static_cast<const T*>(from[0].data) + k * from[0].step, count);
    for (int64_t p = 0; p < parts<T> && p * size < count; ++p) {
      const int64_t left = count - p * size;
      left >= size ? step.part[p].store(out + k + p * size) : step.part[p].store(out + k + p * size, static_cast<int>(left));
    }
  }
}

template <typename T>
void narrow(int64_t n, const Operand* from, void* to) {
  constexpr int64_t size = Floats::size();
  for (int64_t k = 0; k < n; k += step_size<T>) {
    const int64_t count = n - k < step_size<T> ? n - k : step_size<T>;
    Step<T> step;
    for (int64_t p = 0; p < parts<T>; ++p) {
      const int64_t left = count - p * size;
      step.part[p] = left > 0 ? vector_at<float>(from[0], k + p * size, left < size ? left : size) : Floats(0.0f);
    }
    store(static_cast<T*>(to) + k, step, count);
  }
}

}  // namespace

uintptr_t vector_function(Operation op, Type type) {
  if (!program::is_floating(type)) return 0;
  [[maybe_unused]] const bool single = type == Type::float32;
  switch (op) {
#ifdef FOURFOLD_HAS_VECTORS
#define FOURFOLD_ADDRESS(name, operands, rule, cost) \
  case Operation::name: return single ? address(name##_float32) : address(name##_float64);
    FOURFOLD_ELEMENTARY(FOURFOLD_ADDRESS)
#endif
    default: return 0;
  }
}

ArrayFunction* array_function(Operation op, Type type) {
  return type == Type::float32 ? find<float>(op) : type == Type::float64 ? find<double>(op) : nullptr;
}

ArrayFunction* widening(Kind kind) { return kind == Kind::bfloat16 ? widen<c10::BFloat16> : widen<c10::Half>; }
ArrayFunction* narrowing(Kind kind) { return kind == Kind::bfloat16 ? narrow<c10::BFloat16> : narrow<c10::Half>; }
#endif

}  // namespace fourfold::cpu::FOURFOLD_CPU_LEVEL
