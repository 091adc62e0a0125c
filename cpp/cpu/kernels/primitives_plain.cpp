// Primitives in scalar loops that the compiler vectorises: integers, booleans, comparisons, where, conversions.
#include "cpu/kernels/operations.h"
#include "cpu/kernels/primitives.h"

namespace fourfold::cpu::FOURFOLD_CPU_LEVEL {
namespace {

// The number of elements at a time. A value with stride 0 is broadcast to an array of this size.
constexpr int64_t part = 256;

// Booleans are bytes 0 or 1, because the compiler doesn't vectorise bool.
using Boolean = uint8_t;
template <typename T>
using Stored = std::conditional_t<std::is_same_v<T, bool>, Boolean, T>;

template <typename T>
struct Operand {
  const T* data;
  bool side_by_side;
  T laid_out[part];

  explicit Operand(const Slot& slot) : data(static_cast<const T*>(slot.data)), side_by_side(slot.stride != 0) {
    if (side_by_side) return;
    for (T& value : laid_out) value = *data;
  }
  const T* at(int64_t k) const { return side_by_side ? data + k : laid_out; }
};

template <typename Out, typename F, typename... In>
FOURFOLD_FN void loop(int64_t n, Out* to, const F& f, const Operand<In>&... in) {
  for (int64_t k = 0; k < n; k += part) {
    const int64_t count = n - k < part ? n - k : part;
    [&](Out* out, const In*... from) {
#pragma GCC ivdep
      for (int64_t i = 0; i < count; ++i) out[i] = static_cast<Out>(f(from[i]...));
    }(to + k, in.at(k)...);
  }
}

constexpr bool divides(Operation op) {
  return op == Operation::integer_floor_divide || op == Operation::integer_trunc_divide ||
         op == Operation::integer_remainder || op == Operation::integer_fmod;
}

// Whether all values and their negatives fit int32, which excludes -2^31.
FOURFOLD_FN bool are_short(const int64_t* values, int64_t count) {
  uint64_t bits = 0;
  for (int64_t k = 0; k < count; ++k) {
    const uint64_t value = static_cast<uint64_t>(values[k]);
    bits |= values[k] < 0 ? 0 - value : value;
  }
  return bits >> 31 == 0;
}

// int64 division. Most operands fit int32, for which division can be vectorised.
template <typename F>
FOURFOLD_FN void divide_in_parts(int64_t n, int64_t* to, const F& f, const Operand<int64_t>& a, const Operand<int64_t>& b) {
  for (int64_t k = 0; k < n; k += part) {
    const int64_t count = n - k < part ? n - k : part;
    const int64_t *left = a.at(k), *right = b.at(k);
    if (are_short(left, count) && are_short(right, count)) {
#pragma GCC ivdep
      for (int64_t i = 0; i < count; ++i) to[k + i] = f(static_cast<int32_t>(left[i]), static_cast<int32_t>(right[i]));
    } else {
#pragma GCC ivdep
      for (int64_t i = 0; i < count; ++i) to[k + i] = f(left[i], right[i]);
    }
  }
}

// Operations that wrap around, which is defined behaviour only for unsigned integers.
constexpr bool wraps(Operation op) {
  return op == Operation::add || op == Operation::sub || op == Operation::mul || op == Operation::neg;
}

template <Operation op, typename T>
FOURFOLD_FN auto one(T value) {
  if constexpr (wraps(op)) {
    return static_cast<std::make_unsigned_t<T>>(value);
  } else {
    return value;
  }
}

template <typename T, Operation op, size_t... k>
void run(Frame& frame, int64_t n, const Instruction& at, std::index_sequence<k...>) {
  constexpr bool compares = program::describe(op).rule == Rule::comparison;
  using Out = std::conditional_t<compares, Boolean, Stored<T>>;
  const auto same = [](const Slot& slot, size_t) { return Operand<Stored<T>>(slot); };
  const auto f = [](auto... v) {
    if constexpr (std::is_same_v<T, bool> && op == Operation::bitwise_not) {
      return (v ^ ...) ^ 1;
    } else {
      return Of<op>::of(one<op>(v)...);
    }
  };
  Out* to = static_cast<Out*>(frame.slots[at.out].data);
  if constexpr (std::is_same_v<T, int64_t> && divides(op)) {
    divide_in_parts(n, to, f, same(frame.slots[at.in[k]], k)...);
  } else {
    loop(n, to, f, same(frame.slots[at.in[k]], k)...);
  }
}

template <typename T, Operation op>
void run(Frame& frame, int64_t n, const Instruction& at) {
  run<T, op>(frame, n, at, std::make_index_sequence<program::describe(op).operands>());
}

template <typename T>
void run_where(Frame& frame, int64_t n, const Instruction& at) {
  const Slot* slots = frame.slots;
  loop(n, static_cast<T*>(slots[at.out].data), [](Boolean mask, T yes, T no) { return mask != 0 ? yes : no; },
       Operand<Boolean>(slots[at.in[0]]), Operand<T>(slots[at.in[1]]), Operand<T>(slots[at.in[2]]));
}

template <typename T>
Primitive* find(Operation op) {
  if (op == Operation::where) return run_where<Stored<T>>;
  return visit_operation<Primitive>(op, []<Operation one>() -> Primitive* {
    constexpr Rule rule = program::describe(one).rule;
    constexpr bool takes = program::takes(rule, std::is_same_v<T, bool>       ? Type::boolean
                                                : std::is_same_v<T, int32_t> ? Type::int32
                                                                             : Type::int64);
    constexpr bool of_integers = std::is_integral_v<T> && rule != Rule::floating && rule != Rule::selection && takes;
    if constexpr (rule == Rule::comparison || of_integers) return run<T, one>;
    return nullptr;
  });
}

template <typename In, typename Out>
void convert(Frame& frame, int64_t n, const Instruction& at) {
  const auto f = [](Stored<In> value) {
    if constexpr (std::is_same_v<Out, bool>) {
      return static_cast<Boolean>(value != Stored<In>(0));
    } else {
      return static_cast<Out>(value);
    }
  };
  loop(n, static_cast<Stored<Out>*>(frame.slots[at.out].data), f, Operand<Stored<In>>(frame.slots[at.in[0]]));
}

// Wraps an int32 to the range of a smaller integer type.
template <typename T>
void hold(Frame& frame, int64_t n, const Instruction& at) {
  loop(n, static_cast<int32_t*>(frame.slots[at.out].data), [](int32_t value) { return static_cast<int32_t>(static_cast<T>(value)); },
       Operand<int32_t>(frame.slots[at.in[0]]));
}

template <typename T>
void round_to(Frame& frame, int64_t n, const Instruction& at) {
  loop(n, static_cast<float*>(frame.slots[at.out].data), [](float value) { return static_cast<float>(T(value)); },
       Operand<float>(frame.slots[at.in[0]]));
}

template <typename In>
Primitive* find_conversion(Operation op) {
  switch (op) {
    case Operation::to_boolean: return convert<In, bool>;
    case Operation::to_int32: return convert<In, int32_t>;
    case Operation::to_int64: return convert<In, int64_t>;
    case Operation::to_float32: return convert<In, float>;
    case Operation::to_float64: return convert<In, double>;
    default: return nullptr;
  }
}

// Broadcasts each row's value to its columns.
template <typename T>
void expand(Frame& frame, int64_t n, const Instruction& at) {
  const Slot& in = frame.slots[at.in[0]];
  T* to = static_cast<T*>(frame.slots[at.out].data);
  const T* from = static_cast<const T*>(in.data);
  for (int64_t r = 0; r < frame.rows && n > 0; ++r) {
    const T value = from[r * in.stride];
    for (int64_t c = 0; c < frame.columns; ++c) *to++ = value;
  }
}

}  // namespace

Primitive* plain_primitive(Operation op, Type type) {
  switch (op) {
    case Operation::to_int8: return hold<int8_t>;
    case Operation::to_uint8: return hold<uint8_t>;
    case Operation::to_int16: return hold<int16_t>;
    case Operation::to_bfloat16: return round_to<c10::BFloat16>;
    case Operation::to_float16: return round_to<c10::Half>;
    default: break;
  }
  return visit_type(type, [&](auto value) {
    using T = decltype(value);
    Primitive* found = find<T>(op);
    return found != nullptr ? found : find_conversion<T>(op);
  });
}

Primitive* plain_load_primitive(Kind kind) {
  return kind == Kind::uint8   ? convert<uint8_t, int32_t>
         : kind == Kind::int8  ? convert<int8_t, int32_t>
         : kind == Kind::int16 ? convert<int16_t, int32_t> : nullptr;
}

Primitive* plain_store_primitive(Kind kind) {
  return kind == Kind::uint8   ? convert<int32_t, uint8_t>
         : kind == Kind::int8  ? convert<int32_t, int8_t>
         : kind == Kind::int16 ? convert<int32_t, int16_t> : nullptr;
}

Primitive* expand_primitive(Type type) {
  return visit_type(type, [](auto value) -> Primitive* { return expand<decltype(value)>; });
}

Primitive* copy_primitive(Type type) {
  return visit_type(type, [](auto value) -> Primitive* { return convert<decltype(value), decltype(value)>; });
}

}  // namespace fourfold::cpu::FOURFOLD_CPU_LEVEL
