// The operations of pointwise programs: their names, operand counts and operand types.
//
// Programs compute in five types. Tensors of other dtypes are converted on load and store: float16 and bfloat16 to
// float32, small integers to int32.
#pragma once

#include <cstdint>

#include "ops/kind.h"

namespace fourfold::program {

enum class Type : uint8_t { boolean, int32, int64, float32, float64 };
inline constexpr Kind kinds[] = {Kind::boolean, Kind::int32, Kind::int64, Kind::float32, Kind::float64};  // by Type

// The dtype of the same name.
constexpr Kind kind_of(Type type) { return kinds[static_cast<int>(type)]; }
constexpr const char* name_of(Type type) { return fourfold::describe(kind_of(type)).name; }
constexpr int64_t size_of(Type type) { return element_size(kind_of(type)); }

// The type in which programs compute elements of this dtype.
constexpr Type type_of(Kind kind) {
  switch (fourfold::describe(kind).computed) {
    case Kind::boolean: return Type::boolean;
    case Kind::int32: return Type::int32;
    case Kind::int64: return Type::int64;
    case Kind::float64: return Type::float64;
    default: return Type::float32;
  }
}

// Types of an operation's operands -> type of its result. All operands have one type unless stated otherwise.
#define FOURFOLD_RULES(_)                                          \
  _(floating)   /* float32, float64 -> the same */                 \
  _(integers)   /* int32, int64 -> the same */                     \
  _(numbers)    /* floating or integers -> the same */             \
  _(logical)    /* int32, int64, boolean -> the same */            \
  _(comparison) /* any -> boolean */                               \
  _(selection)  /* a boolean, and two of any type -> that type */  \
  _(conversion) /* any -> the type in the operation's name */      \
  _(narrow)     /* int32 -> int32 in a smaller integer's range */  \
  _(rounding)   /* float32 -> float32 that a half type can hold */ \
  _(reduction)  /* numbers, along the columns -> the same */       \
  _(widening)   /* float32, along the columns -> float64 */        \
  _(every)      /* boolean, along the columns -> the same */

enum class Rule : uint8_t {
#define FOURFOLD_NAME(name) name,
  FOURFOLD_RULES(FOURFOLD_NAME)
#undef FOURFOLD_NAME
};

inline constexpr const char* rule_names[] = {
#define FOURFOLD_NAME(name) #name,
    FOURFOLD_RULES(FOURFOLD_NAME)
#undef FOURFOLD_NAME
};

// _(name, operands, rule, cost): the cost, in additions, decides how threads split the work. formulas/pointwise.h
// defines the pointwise operations. Floating-point functions that take more than an instruction or two on every CPU:
// compiled programs call or inline them (cpu/kernels/vector_functions.h).
#define FOURFOLD_ELEMENTARY(_)                                                                    \
  _(pow, 2, floating, 40) _(atan2, 2, floating, 30) _(fmod, 2, floating, 60)                      \
  _(remainder, 2, floating, 60) _(floor_divide, 2, floating, 60)                                  \
  _(exp, 1, floating, 10) _(exp2, 1, floating, 10) _(expm1, 1, floating, 12)                      \
  _(log, 1, floating, 12) _(log2, 1, floating, 12) _(log10, 1, floating, 12)                      \
  _(log1p, 1, floating, 14) _(sin, 1, floating, 14) _(cos, 1, floating, 14) _(tan, 1, floating, 20) \
  _(asin, 1, floating, 14) _(acos, 1, floating, 14) _(atan, 1, floating, 14)                      \
  _(sinh, 1, floating, 16) _(cosh, 1, floating, 16) _(tanh, 1, floating, 14)                      \
  _(asinh, 1, floating, 20) _(acosh, 1, floating, 20) _(atanh, 1, floating, 20)                   \
  _(sigmoid, 1, floating, 14) _(erf, 1, floating, 20) _(erfc, 1, floating, 24)

#define FOURFOLD_FLOATING(_)                                                                      \
  _(div, 2, floating, 4) _(copysign, 2, floating, 1)                                              \
  _(sqrt, 1, floating, 5) _(rsqrt, 1, floating, 8) _(reciprocal, 1, floating, 4)                  \
  FOURFOLD_ELEMENTARY(_)                                                                          \
  _(floor, 1, floating, 1) _(ceil, 1, floating, 1) _(trunc, 1, floating, 1) _(round, 1, floating, 1)

// Operations that compilers vectorise for any CPU.
#define FOURFOLD_NUMBERS(_)                                                                       \
  _(neg, 1, numbers, 1) _(abs, 1, numbers, 1) _(sign, 1, numbers, 2)                              \
  _(add, 2, numbers, 1) _(sub, 2, numbers, 1) _(mul, 2, numbers, 1)                               \
  _(minimum, 2, numbers, 1) _(maximum, 2, numbers, 1)

#define FOURFOLD_INTEGERS(_)                                                                      \
  _(integer_floor_divide, 2, integers, 25) _(integer_trunc_divide, 2, integers, 25)               \
  _(integer_remainder, 2, integers, 25) _(integer_fmod, 2, integers, 25)                          \
  _(shift_left, 2, integers, 2) _(shift_right, 2, integers, 2)                                    \
  _(bitwise_and, 2, logical, 1) _(bitwise_or, 2, logical, 1) _(bitwise_xor, 2, logical, 1)        \
  _(bitwise_not, 1, logical, 1)

#define FOURFOLD_COMPARISONS(_)                                                                   \
  _(eq, 2, comparison, 1) _(ne, 2, comparison, 1) _(lt, 2, comparison, 1)                         \
  _(le, 2, comparison, 1) _(gt, 2, comparison, 1) _(ge, 2, comparison, 1)

#define FOURFOLD_SELECTION(_) _(where, 3, selection, 2)

#define FOURFOLD_POINTWISE(_) \
  FOURFOLD_NUMBERS(_) FOURFOLD_FLOATING(_) FOURFOLD_INTEGERS(_) FOURFOLD_COMPARISONS(_) FOURFOLD_SELECTION(_)

#define FOURFOLD_CONVERSIONS(_)                                                                     \
  _(to_boolean, 1, conversion, 1) _(to_int32, 1, conversion, 1) _(to_int64, 1, conversion, 2)     \
  _(to_float32, 1, conversion, 1) _(to_float64, 1, conversion, 1)                                 \
  _(to_int8, 1, narrow, 1) _(to_uint8, 1, narrow, 1) _(to_int16, 1, narrow, 1)                    \
  _(to_bfloat16, 1, rounding, 2) _(to_float16, 1, rounding, 2)

#define FOURFOLD_REDUCTIONS(_)                                                                      \
  _(sum, 1, reduction, 1) _(prod, 1, reduction, 1) _(amax, 1, reduction, 1) _(amin, 1, reduction, 1) \
  _(all, 1, every, 1) _(any, 1, every, 1) _(sum_float64, 1, widening, 1)

// Reductions combine, in order, the results of blocks of so many columns.
inline constexpr int64_t reduction_block = 1024;

#define FOURFOLD_OPERATIONS(_) FOURFOLD_POINTWISE(_) FOURFOLD_CONVERSIONS(_) FOURFOLD_REDUCTIONS(_)

enum class Operation : uint8_t {
#define FOURFOLD_NAME(name, operands, rule, cost) name,
  FOURFOLD_OPERATIONS(FOURFOLD_NAME)
#undef FOURFOLD_NAME
};

struct Description {
  const char* name;
  int operands;
  Rule rule;
  int cost;
};

inline constexpr Description descriptions[] = {
#define FOURFOLD_DESCRIPTION(name, operands, rule, cost) {#name, operands, Rule::rule, cost},
    FOURFOLD_OPERATIONS(FOURFOLD_DESCRIPTION)
#undef FOURFOLD_DESCRIPTION
};
inline constexpr int operations = sizeof descriptions / sizeof *descriptions;

constexpr const Description& describe(Operation op) { return descriptions[static_cast<int>(op)]; }

constexpr bool is_reduction(Operation op) {
  const Rule rule = describe(op).rule;
  return rule == Rule::reduction || rule == Rule::every || rule == Rule::widening;
}

constexpr bool is_floating(Type type) { return type == Type::float32 || type == Type::float64; }
constexpr bool is_integer(Type type) { return type == Type::int32 || type == Type::int64; }

constexpr bool takes(Rule rule, Type type) {
  switch (rule) {
    case Rule::floating: return is_floating(type);
    case Rule::integers: return is_integer(type);
    case Rule::numbers:
    case Rule::reduction: return type != Type::boolean;
    case Rule::logical: return !is_floating(type);
    case Rule::narrow: return type == Type::int32;
    case Rule::rounding:
    case Rule::widening: return type == Type::float32;
    case Rule::every: return type == Type::boolean;
    default: return true;
  }
}

}  // namespace fourfold::program
