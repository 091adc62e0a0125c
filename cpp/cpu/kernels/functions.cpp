// Operations in plain loops, which compilers vectorise.
#include "cpu/kernels/functions.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "cpu/kernels/vec.h"

namespace fourfold::cpu::FOURFOLD_CPU_LEVEL {
namespace {

using program::Operation;
using program::Rule;
using program::Type;

// Booleans are bytes 0 or 1, because compilers don't vectorise bool.
using Boolean = uint8_t;

namespace op {

template <typename T>
T select(bool mask, T yes, T no) { return mask ? yes : no; }
template <typename T>
T abs(T x) {
  if constexpr (std::is_floating_point_v<T>) return std::fabs(x);
  return x < T(0) ? T(0) - x : x;
}
#include "formulas/pointwise.h"
inline Boolean bitwise_not(Boolean x) { return x ^ 1; }

}  // namespace op

// Calls f(T()) with the C++ type of that type.
template <typename F>
auto visit_type(Type type, const F& f) {
  switch (type) {
    case Type::boolean: return f(Boolean());
    case Type::int32: return f(int32_t());
    case Type::int64: return f(int64_t());
    case Type::float32: return f(float());
    default: return f(double());
  }
}

template <typename T>
inline constexpr Type type_of_cpp = std::is_same_v<T, Boolean>   ? Type::boolean
                                    : std::is_same_v<T, int32_t> ? Type::int32
                                    : std::is_same_v<T, int64_t> ? Type::int64
                                    : std::is_same_v<T, float>   ? Type::float32
                                                                 : Type::float64;

template <typename Out, typename F, typename... In>
void map(int64_t count, Out* to, const F& f, const In*... from) {
#pragma GCC ivdep
  for (int64_t k = 0; k < count; ++k) to[k] = static_cast<Out>(f(from[k]...));
}

// In chunks, whose number of elements compilers know.
template <typename Out, typename... In, typename F, size_t... k>
void map(int64_t count, const Operand* from, void* to, const F& f, std::index_sequence<k...>) {
  Out* const out = static_cast<Out*>(to);
  int64_t at = 0;
  for (; at + chunk <= count; at += chunk) map(chunk, out + at, f, static_cast<const In*>(from[k].data) + at * from[k].step...);
  map(count - at, out + at, f, static_cast<const In*>(from[k].data) + at * from[k].step...);
}

template <typename Out, typename... In, typename F>
void map(int64_t count, const Operand* from, void* to, const F& f) {
  map<Out, In...>(count, from, to, f, std::index_sequence_for<In...>());
}

constexpr bool wraps(Operation operation) {
  return operation == Operation::add || operation == Operation::sub || operation == Operation::mul || operation == Operation::neg;
}
// Arithmetic of integers wraps around, which is defined only for unsigned ones.
template <typename T, Operation operation>
using Read = typename std::conditional_t<wraps(operation) && std::is_integral_v<T>, std::make_unsigned<T>, std::type_identity<T>>::type;

template <typename T, Operation operation, typename F>
ArrayFunction* find(F) {
  constexpr program::Description described = program::describe(operation);
  if constexpr (program::takes(described.rule, type_of_cpp<T>)) {
    using In = Read<T, operation>;
    using Out = std::conditional_t<described.rule == Rule::comparison, Boolean, T>;
    if constexpr (described.operands == 1) return [](int64_t count, const Operand* from, void* to) { map<Out, In>(count, from, to, F()); };
    if constexpr (described.operands == 2) return [](int64_t count, const Operand* from, void* to) { map<Out, In, In>(count, from, to, F()); };
  } else {
    return nullptr;
  }
}

template <typename T>
ArrayFunction* find(Operation operation) {
  switch (operation) {
#define FOURFOLD_CASE(name, operands, rule, cost) \
  case Operation::name: return find<T, Operation::name>([](auto... v) { return op::name(v...); });
    FOURFOLD_NUMBERS(FOURFOLD_CASE)
    FOURFOLD_INTEGERS(FOURFOLD_CASE)
    FOURFOLD_COMPARISONS(FOURFOLD_CASE)
#undef FOURFOLD_CASE
    default: return nullptr;
  }
}

template <typename T>
void where(int64_t count, const Operand* from, void* to) {
  map<T, Boolean, T, T>(count, from, to, [](Boolean mask, T yes, T no) { return op::where(mask != 0, yes, no); });
}

template <typename In, typename Out>
void convert(int64_t count, const Operand* from, void* to) {
  map<Out, In>(count, from, to, [](In value) { return static_cast<Out>(value); });
}

template <typename In>
void to_boolean(int64_t count, const Operand* from, void* to) {
  map<Boolean, In>(count, from, to, [](In value) { return value != In(0); });
}

template <typename In>
ArrayFunction* find_conversion(Operation operation) {
  switch (operation) {
    case Operation::to_boolean: return to_boolean<In>;
    case Operation::to_int32: return convert<In, int32_t>;
    case Operation::to_int64: return convert<In, int64_t>;
    case Operation::to_float32: return convert<In, float>;
    case Operation::to_float64: return convert<In, double>;
    default: return nullptr;
  }
}

// Wraps to the range of a smaller integer type.
template <typename T>
void hold(int64_t count, const Operand* from, void* to) {
  map<int32_t, int32_t>(count, from, to, [](int32_t value) { return static_cast<T>(value); });
}

template <Kind kind>
void round_to(int64_t count, const Operand* from, void* to) {
  uint16_t halves[program::reduction_block];
  const Operand rounded{halves, 1};
  narrowing(kind)(count, from, halves);
  widening(kind)(count, &rounded, to);
}

// Reductions.

constexpr int chains = 4;
constexpr int lanes = Vectorized<float>::size();

template <Operation operation, typename T>
T combined(T a, T b) {
  if constexpr (std::is_integral_v<T> && (operation == Operation::sum || operation == Operation::prod)) {
    const auto x = static_cast<std::make_unsigned_t<T>>(a), y = static_cast<std::make_unsigned_t<T>>(b);
    return static_cast<T>(operation == Operation::sum ? x + y : x * y);
  }
  if constexpr (operation == Operation::prod) return a * b;
  if constexpr (operation == Operation::amax || operation == Operation::any) return op::maximum(a, b);
  if constexpr (operation == Operation::amin || operation == Operation::all) return op::minimum(a, b);
  return a + b;
}

template <Operation operation, typename T>
constexpr T identity() {
  using Limits = std::numeric_limits<T>;
  switch (operation) {
    case Operation::prod:
    case Operation::all: return T(1);
    case Operation::amax: return Limits::has_infinity ? -Limits::infinity() : Limits::lowest();
    case Operation::amin: return Limits::has_infinity ? Limits::infinity() : Limits::max();
    default: return T(0);
  }
}

// Reduces the lanes by halving.
template <Operation operation, typename T, int count>
T folded(T* lane) {
  if constexpr (count == 1) {
    return lane[0];
  } else {
    for (int k = 0; k < count / 2; ++k) lane[k] = combined<operation, T>(lane[k], lane[k + count / 2]);
    return folded<operation, T, count / 2>(lane);
  }
}

// Four chains of lanes take whole groups of elements in turn, and the fourth one takes the remainder. Nests
// (compiler/nest/cpu/stages.py) reduce in the same order.
template <Operation operation, typename T, typename Total>
Total reduced(int64_t count, const T* from) {
  Total lane[lanes];
  if (count <= lanes) {  // the chains would hold nothing else
    for (int k = 0; k < lanes; ++k) lane[k] = k < count ? combined<operation, T>(identity<operation, T>(), from[k]) : identity<operation, T>();
    return folded<operation, Total, lanes>(lane);
  }
  T chain[chains][lanes];
  for (auto& each : chain) {
    for (T& lane : each) lane = identity<operation, T>();
  }
  const auto add = [&](int c, const T* group) {
    for (int k = 0; k < lanes; ++k) chain[c][k] = combined<operation, T>(chain[c][k], group[k]);
  };
  int64_t at = 0;
  for (; at + chains * lanes <= count; at += chains * lanes) {
    for (int c = 0; c < chains; ++c) add(c, from + at + c * lanes);
  }
  for (int c = 0; at + lanes <= count; at += lanes) add(c++, from + at);
  for (int k = 0; at < count; ++at, ++k) chain[chains - 1][k] = combined<operation, T>(chain[chains - 1][k], from[at]);
  for (int k = 0; k < lanes; ++k) {
    lane[k] = combined<operation, T>(combined<operation, T>(chain[0][k], chain[1][k]), combined<operation, T>(chain[2][k], chain[3][k]));
  }
  return folded<operation, Total, lanes>(lane);
}

// The sum of a block in float64. Four groups of lanes at a time are added in float32, by pairs, so that equal numbers add
// up exactly, and a quarter of them, which doesn't overflow.
double wide_sum(int64_t count, const float* from) {
  double lane[lanes] = {};
  int64_t at = 0;
  const auto quarter = [&](int k) { return from[at + k] * 0.25f; };
  for (; at + chains * lanes <= count; at += chains * lanes) {
    for (int k = 0; k < lanes; ++k) {
      lane[k] += (quarter(k) + quarter(k + lanes)) + (quarter(k + 2 * lanes) + quarter(k + 3 * lanes));
    }
  }
  for (; at + lanes <= count; at += lanes) {
    for (int k = 0; k < lanes; ++k) lane[k] += quarter(k);
  }
  for (int k = 0; k < count - at; ++k) lane[k] += quarter(k);
  return 4 * folded<Operation::sum, double, lanes>(lane);
}

template <Operation operation, typename T>
Reduction reduction() {
  constexpr bool is_wide = operation == Operation::sum_float64;
  constexpr bool is_exact = is_wide || (std::is_same_v<T, float> && (operation == Operation::sum || operation == Operation::prod));
  using Total = std::conditional_t<is_exact, double, T>;
  return {
      .add =
          [](int64_t rows, int64_t columns, const void* from, bool starts, void* totals) {
            Total* const to = static_cast<Total*>(totals);
            const T* const row = static_cast<const T*>(from);
            for (int64_t r = 0; r < rows; ++r) {
              Total part;
              if constexpr (is_wide) {
                part = wide_sum(columns, row + r * columns);
              } else {
                part = reduced<operation, T, Total>(columns, row + r * columns);
              }
              to[r] = combined<operation, Total>(starts ? identity<operation, Total>() : to[r], part);
            }
          },
      .combine =
          [](const void* other, void* total) {
            Total& to = *static_cast<Total*>(total);
            to = combined<operation, Total>(to, *static_cast<const Total*>(other));
          },
  };
}

template <typename T>
Reduction find_reduction(Operation operation) {
  switch (operation) {
    case Operation::all: return reduction<Operation::all, Boolean>();
    case Operation::any: return reduction<Operation::any, Boolean>();
    case Operation::sum_float64: return reduction<Operation::sum_float64, float>();
    case Operation::prod: return reduction<Operation::prod, T>();
    case Operation::amax: return reduction<Operation::amax, T>();
    case Operation::amin: return reduction<Operation::amin, T>();
    default: return reduction<Operation::sum, T>();
  }
}

}  // namespace

ArrayFunction* function_of(Operation operation, Type type) {
  if (ArrayFunction* const found = array_function(operation, type); found != nullptr) return found;
  switch (operation) {
    case Operation::to_int8: return hold<int8_t>;
    case Operation::to_uint8: return hold<uint8_t>;
    case Operation::to_int16: return hold<int16_t>;
    case Operation::to_bfloat16: return round_to<Kind::bfloat16>;
    case Operation::to_float16: return round_to<Kind::float16>;
    default: break;
  }
  return visit_type(type, [&](auto value) -> ArrayFunction* {
    using T = decltype(value);
    if (operation == Operation::where) return where<T>;
    ArrayFunction* const found = find<T>(operation);
    return found != nullptr ? found : find_conversion<T>(operation);
  });
}

ArrayFunction* load_of(Kind kind) {
  return is_half(kind)         ? widening(kind)
         : kind == Kind::uint8 ? convert<uint8_t, int32_t>
         : kind == Kind::int8  ? convert<int8_t, int32_t>
         : kind == Kind::int16 ? convert<int16_t, int32_t>
                               : nullptr;
}

ArrayFunction* store_of(Kind kind) {
  return is_half(kind)         ? narrowing(kind)
         : kind == Kind::uint8 ? convert<int32_t, uint8_t>
         : kind == Kind::int8  ? convert<int32_t, int8_t>
         : kind == Kind::int16 ? convert<int32_t, int16_t>
                               : nullptr;
}

ArrayFunction* copy_of(int64_t size) {
  return size == 1   ? convert<uint8_t, uint8_t>
         : size == 2 ? convert<uint16_t, uint16_t>
         : size == 4 ? convert<uint32_t, uint32_t>
                     : convert<uint64_t, uint64_t>;
}

Reduction reduction_of(Operation operation, Type type) {
  return visit_type(type, [&](auto value) { return find_reduction<decltype(value)>(operation); });
}

void repeat_rows(int64_t size, int64_t rows, int64_t columns, const void* from, void* to) {
  const auto repeat = [&](auto value) {
    auto* out = static_cast<decltype(value)*>(to);
    for (int64_t r = 0; r < rows; ++r) {
      std::memcpy(&value, static_cast<const char*>(from) + r * size, sizeof value);
      for (int64_t c = 0; c < columns; ++c) *out++ = value;
    }
  };
  size == 1 ? repeat(uint8_t()) : size == 2 ? repeat(uint16_t()) : size == 4 ? repeat(uint32_t()) : repeat(uint64_t());
}

void add_rows(Type type, int64_t rows, int64_t columns, const void* from, void* to) {
  visit_type(type, [&](auto value) {
    const auto* row = static_cast<const decltype(value)*>(from);
    auto* const sums = static_cast<decltype(value)*>(to);
    for (int64_t r = 0; r < rows; ++r, row += columns) {
      for (int64_t c = 0; c < columns; ++c) sums[c] += row[c];
    }
  });
}

}  // namespace fourfold::cpu::FOURFOLD_CPU_LEVEL
