// What programs in C++ are written in (cpu/program/emit.cpp): where a stage's values come from and go to. A stage is
// called with a block of elements, as the primitives that it stands for would be.
#pragma once

#include "cpu/kernels/mixed.h"
#include "cpu/kernels/reductions.h"

// All that a program's library shows.
#define FOURFOLD_STAGES(name)                                                                \
  extern "C" __attribute__((visibility("default"))) StageFunction* name[];                   \
  StageFunction* name[]

namespace fourfold::cpu::FOURFOLD_CPU_LEVEL::emitted {

using namespace mixed;
namespace op = mixed::op;

using boolean = Lanes<bool>;
using int32 = Lanes<int32_t>;
using int64 = Lanes<int64_t>;
using float32 = Lanes<float>;
using float64 = Lanes<double>;
using BFloat16 = c10::BFloat16;
using Half = c10::Half;

// How many of the lanes from the k-th element on are elements: all but for the last.
FOURFOLD_FN int64_t left(int64_t count, int64_t k) { return count - k < lanes ? count - k : lanes; }

// The type that memory of M is computed in.
template <typename M>
inline constexpr bool is_half = std::is_same_v<M, c10::BFloat16> || std::is_same_v<M, c10::Half>;
template <typename M>
inline constexpr bool is_small = std::is_integral_v<M> && !std::is_same_v<M, bool> && sizeof(M) < sizeof(int32_t);
template <typename M>
using Number = std::conditional_t<is_half<M>, float, std::conditional_t<is_small<M>, int32_t, M>>;

// Apart, so that what is loaded whole stays in a register.
template <typename V, typename M>
__attribute__((noinline, cold)) V load_some(const M* from, int64_t count) {
  V result{};
  if (count > 0) std::memcpy(&result, from, static_cast<size_t>(count) * sizeof(M));
  return result;
}
template <typename V, typename M>
__attribute__((noinline, cold)) void store_some(M* to, const V& value, int64_t count) {
  if (count > 0) std::memcpy(to, &value, static_cast<size_t>(count) * sizeof(M));
}

template <typename V, typename M>
FOURFOLD_FN V load_row(const M* from, int64_t count) {
  if (count < static_cast<int64_t>(sizeof(V) / sizeof(M))) [[unlikely]] return load_some<V>(from, count);
  V result;
  std::memcpy(&result, from, sizeof result);
  return result;
}
template <typename V, typename M>
FOURFOLD_FN void store_row(M* to, const V& value, int64_t count) {
  if (count < static_cast<int64_t>(sizeof(V) / sizeof(M))) [[unlikely]] return store_some(to, value, count);
  std::memcpy(to, &value, sizeof value);
}

template <typename M>
FOURFOLD_FN Lanes<Number<M>> load(const M* from, int64_t count) {
  using T = Number<M>;
  if constexpr (is_half<M>) {
    return Lanes<T>(register_of<float>(FOURFOLD_CPU_LEVEL::load(from, count).part[0]));
  } else if constexpr (std::is_same_v<M, bool>) {
    const auto bytes = load_row<Row<uint8_t>>(reinterpret_cast<const uint8_t*>(from), count);
    return Lanes<bool>(__builtin_convertvector(bytes, Row<int32_t>) != 0);
  } else if constexpr (sizeof(M) < sizeof(T)) {
    return Lanes<T>(__builtin_convertvector(load_row<Row<M>>(from, count), Row<T>));
  } else if constexpr (registers<T> == 1) {
    return Lanes<T>(load_row<Register<T>>(from, count));
  } else {
    return Lanes<T>(load_row<Register<T>>(from, count), load_row<Register<T>>(from + lanes / 2, count - lanes / 2));
  }
}

template <typename M>
FOURFOLD_FN void store(M* to, const Lanes<Number<M>>& value, int64_t count) {
  using T = Number<M>;
  if constexpr (is_half<M>) {
    FOURFOLD_CPU_LEVEL::store(to, Step<M>{vector_of<float>(value.part[0]), Floats(0.0f)}, count);
  } else if constexpr (std::is_same_v<M, bool>) {
    store_row(reinterpret_cast<uint8_t*>(to), __builtin_convertvector(value.mask & 1, Row<uint8_t>), count);
  } else if constexpr (sizeof(M) < sizeof(T)) {
    store_row(to, __builtin_convertvector(value.part[0], Row<M>), count);
  } else {
    store_row(to, value.part[0], count);
    if constexpr (registers<T> == 2) store_row(to + lanes / 2, value.part[1], count - lanes / 2);
  }
}

// Elements side by side, or one that stands for all.
template <typename M>
class Input {
 public:
  explicit Input(const Slot& slot) : slot_(slot), data_(static_cast<const M*>(slot.data)) {}

  FOURFOLD_FN Lanes<Number<M>> at(int64_t k, int64_t count) const {
    if (slot_.stride == 0) return Lanes<Number<M>>(static_cast<Number<M>>(*data_));
    return load(data_ + k, count);
  }
  const Slot& slot() const { return slot_; }

 private:
  Slot slot_;
  const M* data_;
};

template <typename M>
class Output {
 public:
  explicit Output(const Slot& slot) : data_(static_cast<M*>(slot.data)) {}

  FOURFOLD_FN void put(int64_t k, int64_t count, const Lanes<Number<M>>& value) const {
    store(data_ + k, value, count);
  }

 private:
  M* data_;
};

// A number for the whole call.
template <typename L>
FOURFOLD_FN L number(const Slot& slot) { return L(*static_cast<const typename L::Number*>(slot.data)); }

// What a reduction goes over, when the block's elements are there.
template <typename L>
class Block {
 public:
  FOURFOLD_FN void put(int64_t k, const L& value) { store(elements_ + k, value, lanes); }
  Slot slot() { return {elements_, 1}; }

 private:
  alignas(64) typename L::Number elements_[most_elements + lanes];
};

// Of the block that is next, what this one's k-th element lies before.
FOURFOLD_FN void look_ahead(const Frame& frame, int64_t k) {
  for (int s = 0; s < frame.ahead_count; ++s) __builtin_prefetch(frame.ahead[s] + k * sizeof(float), 0, 3);
}

// Each row's elements with what it has so far.
template <typename R, typename L>
FOURFOLD_FN void reduce(const Frame& frame, int64_t count, const Slot& of, const Slot& to) {
  reduce_rows<R, typename L::Number>(frame, count, of, to.data);
}

template <typename L>
FOURFOLD_FN void total(const Frame& frame, int64_t count, const Slot& of, const Slot& to) {
  total_rows<typename L::Number>(frame, count, of, static_cast<double*>(to.data));
}

}  // namespace fourfold::cpu::FOURFOLD_CPU_LEVEL::emitted
