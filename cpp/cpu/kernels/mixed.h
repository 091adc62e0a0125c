// Vectors of any of a program's types with the same number of lanes, so that the types mix: of those that are twice as
// wide, two registers; booleans are masks of 32 bits.
//
// They are the compiler's own vectors, whose arithmetic is the processor's; functions are computed in at::vec's.
#pragma once

#include <cstring>

#include "cpu/kernels/operations.h"

namespace fourfold::cpu::FOURFOLD_CPU_LEVEL::mixed {

inline constexpr int64_t lanes = Floats::size();

template <typename T, int64_t count>
struct VectorOf {
  typedef T type __attribute__((vector_size(sizeof(T) * count)));
};
template <typename T, int64_t count = lanes>
using Row = typename VectorOf<T, count>::type;
template <typename T>
inline constexpr int64_t registers = sizeof(T) / sizeof(float);
template <typename T>
using Register = Row<T, lanes / registers<T>>;

template <typename T>
struct Lanes {
  static_assert(sizeof(Register<T>) == sizeof(Floats) && (registers<T> == 1 || registers<T> == 2));
  using Number = T;
  Register<T> part[registers<T>];

  Lanes() = default;
  explicit FOURFOLD_FN Lanes(Register<T> only) : part{only} {}
  FOURFOLD_FN Lanes(Register<T> low, Register<T> high) : part{low, high} {}
  explicit FOURFOLD_FN Lanes(T all) {
    part[0] = all - Register<T>{};  // -0 stays
    if constexpr (registers<T> == 2) part[1] = part[0];
  }
};

template <>
struct Lanes<bool> {
  using Number = bool;
  Row<int32_t> mask;

  Lanes() = default;
  explicit FOURFOLD_FN Lanes(Row<int32_t> mask) : mask(mask) {}
  explicit FOURFOLD_FN Lanes(bool all) : mask(Row<int32_t>{} - static_cast<int32_t>(all)) {}
};

template <typename T>
using HalfRow = Row<T, lanes / 2>;

template <typename T>
FOURFOLD_FN HalfRow<T> half(const Row<T>& whole, int place) {
  HalfRow<T> result;
  std::memcpy(&result, reinterpret_cast<const char*>(&whole) + place * sizeof result, sizeof result);
  return result;
}

template <typename T>
FOURFOLD_FN Row<T> joined(const HalfRow<T>& low, const HalfRow<T>& high) {
  Row<T> result;
  std::memcpy(&result, &low, sizeof low);
  std::memcpy(reinterpret_cast<char*>(&result) + sizeof low, &high, sizeof high);
  return result;
}

// f of each register.
template <typename To, typename F, typename... T>
FOURFOLD_FN Lanes<To> by_part(const F& f, const Lanes<T>&... v) {
  if constexpr (registers<To> == 1) {
    return Lanes<To>(f(v.part[0]...));
  } else {
    return Lanes<To>(f(v.part[0]...), f(v.part[1]...));
  }
}

template <typename T, typename F>
FOURFOLD_FN Lanes<bool> compared(const F& f, const Lanes<T>& a, const Lanes<T>& b) {
  if constexpr (registers<T> == 1) {
    return Lanes<bool>((Row<int32_t>)f(a.part[0], b.part[0]));
  } else {
    const auto narrow = [](const auto& mask) { return __builtin_convertvector(mask, HalfRow<int32_t>); };
    return Lanes<bool>(joined<int32_t>(narrow(f(a.part[0], b.part[0])), narrow(f(a.part[1], b.part[1]))));
  }
}

template <typename T>
FOURFOLD_FN Lanes<bool> operator==(const Lanes<T>& a, const Lanes<T>& b) {
  return compared([](const auto& x, const auto& y) { return x == y; }, a, b);
}
template <typename T>
FOURFOLD_FN Lanes<bool> operator!=(const Lanes<T>& a, const Lanes<T>& b) {
  return compared([](const auto& x, const auto& y) { return x != y; }, a, b);
}
template <typename T>
FOURFOLD_FN Lanes<bool> operator<(const Lanes<T>& a, const Lanes<T>& b) {
  return compared([](const auto& x, const auto& y) { return x < y; }, a, b);
}
template <typename T>
FOURFOLD_FN Lanes<bool> operator<=(const Lanes<T>& a, const Lanes<T>& b) {
  return compared([](const auto& x, const auto& y) { return x <= y; }, a, b);
}
template <typename T>
FOURFOLD_FN Lanes<bool> operator>(const Lanes<T>& a, const Lanes<T>& b) { return b < a; }
template <typename T>
FOURFOLD_FN Lanes<bool> operator>=(const Lanes<T>& a, const Lanes<T>& b) { return b <= a; }

// Booleans among themselves: false is less than true.
FOURFOLD_FN Lanes<bool> operator&(const Lanes<bool>& a, const Lanes<bool>& b) { return Lanes<bool>(a.mask & b.mask); }
FOURFOLD_FN Lanes<bool> operator|(const Lanes<bool>& a, const Lanes<bool>& b) { return Lanes<bool>(a.mask | b.mask); }
FOURFOLD_FN Lanes<bool> operator^(const Lanes<bool>& a, const Lanes<bool>& b) { return Lanes<bool>(a.mask ^ b.mask); }
FOURFOLD_FN Lanes<bool> operator~(const Lanes<bool>& a) { return Lanes<bool>(~a.mask); }
FOURFOLD_FN Lanes<bool> operator==(const Lanes<bool>& a, const Lanes<bool>& b) { return ~(a ^ b); }
FOURFOLD_FN Lanes<bool> operator!=(const Lanes<bool>& a, const Lanes<bool>& b) { return a ^ b; }
FOURFOLD_FN Lanes<bool> operator<(const Lanes<bool>& a, const Lanes<bool>& b) { return ~a & b; }
FOURFOLD_FN Lanes<bool> operator<=(const Lanes<bool>& a, const Lanes<bool>& b) { return ~a | b; }
FOURFOLD_FN Lanes<bool> operator>(const Lanes<bool>& a, const Lanes<bool>& b) { return b < a; }
FOURFOLD_FN Lanes<bool> operator>=(const Lanes<bool>& a, const Lanes<bool>& b) { return b <= a; }

// Of integers, without signs, so that they wrap around.
template <typename T, typename F>
FOURFOLD_FN Lanes<T> wrapping(const F& f, const Lanes<T>& a, const Lanes<T>& b) {
  using Unsigned = Register<std::make_unsigned_t<T>>;
  return by_part<T>([&](const auto& x, const auto& y) { return (Register<T>)f((Unsigned)x, (Unsigned)y); }, a, b);
}
template <typename T>
FOURFOLD_FN Lanes<T> operator+(const Lanes<T>& a, const Lanes<T>& b) {
  return wrapping([](const auto& x, const auto& y) { return x + y; }, a, b);
}
template <typename T>
FOURFOLD_FN Lanes<T> operator-(const Lanes<T>& a, const Lanes<T>& b) {
  return wrapping([](const auto& x, const auto& y) { return x - y; }, a, b);
}
template <typename T>
FOURFOLD_FN Lanes<T> operator*(const Lanes<T>& a, const Lanes<T>& b) {
  return wrapping([](const auto& x, const auto& y) { return x * y; }, a, b);
}
template <typename T>
FOURFOLD_FN Lanes<T> operator-(const Lanes<T>& x) { return Lanes<T>(T(0)) - x; }
template <typename T>
FOURFOLD_FN Lanes<T> operator&(const Lanes<T>& a, const Lanes<T>& b) {
  return by_part<T>([](const auto& x, const auto& y) { return x & y; }, a, b);
}
template <typename T>
FOURFOLD_FN Lanes<T> operator|(const Lanes<T>& a, const Lanes<T>& b) {
  return by_part<T>([](const auto& x, const auto& y) { return x | y; }, a, b);
}
template <typename T>
FOURFOLD_FN Lanes<T> operator^(const Lanes<T>& a, const Lanes<T>& b) {
  return by_part<T>([](const auto& x, const auto& y) { return x ^ y; }, a, b);
}
template <typename T>
FOURFOLD_FN Lanes<T> operator~(const Lanes<T>& a) {
  return by_part<T>([](const auto& x) { return ~x; }, a);
}

// What formulas/pointwise.h chooses by.
template <typename T>
FOURFOLD_FN Lanes<T> select(const Lanes<bool>& mask, const Lanes<T>& yes, const Lanes<T>& no) {
  if constexpr (registers<T> == 1) {
    return Lanes<T>(mask.mask ? yes.part[0] : no.part[0]);
  } else {
    const auto wide = [&](int at) { return __builtin_convertvector(half<int32_t>(mask.mask, at), Register<int64_t>); };
    return Lanes<T>(wide(0) ? yes.part[0] : no.part[0], wide(1) ? yes.part[1] : no.part[1]);
  }
}
FOURFOLD_FN Lanes<bool> select(const Lanes<bool>& mask, const Lanes<bool>& yes, const Lanes<bool>& no) {
  return (mask & yes) | (~mask & no);
}

template <typename To, typename From>
FOURFOLD_FN Lanes<To> converted(const Lanes<From>& v) {
  if constexpr (std::is_same_v<To, From>) {
    return v;
  } else if constexpr (std::is_same_v<To, bool>) {
    return v != Lanes<From>(From(0));
  } else if constexpr (std::is_same_v<From, bool>) {
    return converted<To>(Lanes<int32_t>(v.mask & 1));
  } else if constexpr (registers<To> == registers<From>) {
    return by_part<To>([](const auto& x) { return __builtin_convertvector(x, Register<To>); }, v);
  } else if constexpr (registers<To> == 1) {
    const auto narrow = [](const auto& x) { return __builtin_convertvector(x, HalfRow<To>); };
    return Lanes<To>(joined<To>(narrow(v.part[0]), narrow(v.part[1])));
  } else {
    const auto wide = [&](int place) { return __builtin_convertvector(half<From>(v.part[0], place), Register<To>); };
    return Lanes<To>(wide(0), wide(1));
  }
}

// An int32 with the values of a smaller integer.
template <typename Small>
FOURFOLD_FN Lanes<int32_t> held(const Lanes<int32_t>& v) {
  return Lanes<int32_t>(__builtin_convertvector(__builtin_convertvector(v.part[0], Row<Small>), Row<int32_t>));
}

template <typename T>
FOURFOLD_FN Vectorized<T> vector_of(const Register<T>& part) {
  Vectorized<T> result;
  std::memcpy(static_cast<void*>(&result), &part, sizeof part);
  return result;
}

template <typename T>
FOURFOLD_FN Register<T> register_of(const Vectorized<T>& vector) {
  Register<T> result;
  std::memcpy(&result, &vector, sizeof result);
  return result;
}

template <typename T, typename F, typename... L>
FOURFOLD_FN Lanes<T> by_lane(const F& f, const L&... v) {
  const auto each = [&f](const auto*... from) {
    T made[lanes];
#pragma GCC ivdep
    for (int64_t k = 0; k < lanes; ++k) made[k] = static_cast<T>(f(from[k]...));
    Lanes<T> result;
    std::memcpy(result.part, made, sizeof made);
    return result;
  };
  return each(reinterpret_cast<const T*>(v.part)...);
}

template <typename Small>
FOURFOLD_FN Lanes<float> rounded(const Lanes<float>& v) {
  return by_lane<float>([](float x) { return static_cast<float>(Small(x)); }, v);
}

// Floating point in at::vec's vectors, as primitives are; of integers one by one what is written for numbers alone.
template <Operation one, typename T, typename... L>
FOURFOLD_FN auto apply(const Lanes<T>& v, const L&... rest) {
  constexpr Rule rule = program::describe(one).rule;
  if constexpr (rule == Rule::floating || (rule == Rule::numbers && std::is_floating_point_v<T>)) {
    const auto f = [](const auto&... x) { return register_of<T>(Of<one>::of(vector_of<T>(x)...)); };
    return by_part<T>(f, v, rest...);
  } else if constexpr (rule == Rule::integers || one == Operation::abs) {
    return by_lane<T>([](auto... x) { return Of<one>::of(x...); }, v, rest...);
  } else {
    return Of<one>::of(v, rest...);
  }
}

namespace op {

#define FOURFOLD_NAMED(name, operands, rule, cost) \
  template <typename... L>                         \
  FOURFOLD_FN auto name(const L&... v) { return apply<Operation::name>(v...); }
FOURFOLD_POINTWISE(FOURFOLD_NAMED)
#undef FOURFOLD_NAMED

template <typename T>
struct SineAndCosine {
  Lanes<T> sin, cos;
};
template <typename T>
FOURFOLD_FN SineAndCosine<T> sincos(const Lanes<T>& x) {
  if constexpr (registers<T> == 1) {
    const auto both = FOURFOLD_CPU_LEVEL::sincos(vector_of<T>(x.part[0]));
    return {Lanes<T>(register_of<T>(both.sin)), Lanes<T>(register_of<T>(both.cos))};
  } else {
    return {op::sin(x), op::cos(x)};
  }
}

template <typename T>
FOURFOLD_FN auto to_boolean(const Lanes<T>& v) { return converted<bool>(v); }
template <typename T>
FOURFOLD_FN auto to_int32(const Lanes<T>& v) { return converted<int32_t>(v); }
template <typename T>
FOURFOLD_FN auto to_int64(const Lanes<T>& v) { return converted<int64_t>(v); }
template <typename T>
FOURFOLD_FN auto to_float32(const Lanes<T>& v) { return converted<float>(v); }
template <typename T>
FOURFOLD_FN auto to_float64(const Lanes<T>& v) { return converted<double>(v); }
FOURFOLD_FN auto to_int8(const Lanes<int32_t>& v) { return held<int8_t>(v); }
FOURFOLD_FN auto to_uint8(const Lanes<int32_t>& v) { return held<uint8_t>(v); }
FOURFOLD_FN auto to_int16(const Lanes<int32_t>& v) { return held<int16_t>(v); }
FOURFOLD_FN auto to_bfloat16(const Lanes<float>& v) { return rounded<c10::BFloat16>(v); }
FOURFOLD_FN auto to_float16(const Lanes<float>& v) { return rounded<c10::Half>(v); }

}  // namespace op
}  // namespace fourfold::cpu::FOURFOLD_CPU_LEVEL::mixed
