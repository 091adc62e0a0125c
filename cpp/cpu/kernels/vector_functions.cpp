// The elementary functions of programs for one native vector: `exp_float32` and so on. In libfourfold they are in the
// CPU levels' namespaces. scripts/bitcode.py compiles the same source to LLVM bitcode, where their names are
// `fourfold_exp_float32` and so on.
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
template <typename F>
static uintptr_t address(F* function) { return reinterpret_cast<uintptr_t>(function); }

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
#endif

}  // namespace fourfold::cpu::FOURFOLD_CPU_LEVEL
