// Floating-point primitives, on vectors.
#include "cpu/kernels/masks.h"
#include "cpu/kernels/operations.h"
#include "cpu/kernels/primitives.h"

namespace fourfold::cpu::FOURFOLD_CPU_LEVEL {
namespace {

template <typename T>
Elements<T> elements(const Slot& slot) { return {static_cast<const T*>(slot.data), slot.stride}; }

template <typename T>
FOURFOLD_FN Vectorized<T> vector_at(const Elements<T>& in, int64_t k, int64_t count) {
  if (in.stride == 0) return Vectorized<T>(*in.data);
  return count == Vectorized<T>::size() ? Vectorized<T>::loadu(in.data + k) : Vectorized<T>::loadu(in.data + k, count);
}

// One operation's share of the next block's prefetches.
class Ahead {
 public:
  explicit Ahead(Frame& frame) : from_(frame.ahead), last_(frame.ahead_count) {
    first_ = last_ < frame.ahead_each ? 0 : last_ - frame.ahead_each;
    frame.ahead_count = first_;
  }

  // Prefetches each cache line once. byte: a multiple of a vector's size.
  FOURFOLD_FN void fetch(int64_t byte) const {
    if (byte % line != 0) return;
    for (int s = first_; s < last_; ++s) __builtin_prefetch(from_[s] + byte, 0, 3);
  }

 private:
  static constexpr int64_t line = 64;
  const char* const* from_;
  int first_;
  int last_;
};

template <typename T, typename F, typename... Inputs>
FOURFOLD_FN void map_vectors(Frame& frame, int64_t n, T* to, const F& f, const Inputs&... in) {
  constexpr int64_t size = Vectorized<T>::size();
  const Ahead ahead(frame);
  for (int64_t k = 0; k < n; k += size) {
    ahead.fetch(k * sizeof(T));
    const int64_t count = n - k < size ? n - k : size;
    const Vectorized<T> result = f(vector_at(in, k, count)...);
    count == size ? result.store(to + k) : result.store(to + k, static_cast<int>(count));
  }
}

template <typename T, Operation op, size_t... k>
void run(Frame& frame, int64_t n, const Instruction& at, std::index_sequence<k...>) {
  T* to = static_cast<T*>(frame.slots[at.out].data);
  const auto f = [](const auto&... v) { return Vectorized<T>(Of<op>::of(v...)); };
  if constexpr (is_expensive(op)) {  // without map()'s specialised copies, because the code is long already
    map_vectors<T>(frame, n, to, f, elements<T>(frame.slots[at.in[k]])...);
  } else {
    map<T>(n, to, f, elements<T>(frame.slots[at.in[k]])...);
  }
}

template <typename T, Operation op>
void run(Frame& frame, int64_t n, const Instruction& at) {
  run<T, op>(frame, n, at, std::make_index_sequence<program::describe(op).operands>());
}

template <typename T, Operation inner, Operation outer, bool is_second>
void run_pair(Frame& frame, int64_t n, const Instruction& at) {
  const auto f = [](const auto& a, const auto& b, const auto& c) {
    const Vectorized<T> made = Of<inner>::of(a, b);
    return is_second ? Vectorized<T>(Of<outer>::of(c, made)) : Vectorized<T>(Of<outer>::of(made, c));
  };
  const Slot* slots = frame.slots;
  map<T>(n, static_cast<T*>(slots[at.out].data), f, elements<T>(slots[at.in[0]]), elements<T>(slots[at.in[1]]),
         elements<T>(slots[at.in[2]]));
}

// Calls f<op>() for add, sub or mul; returns null for others.
template <typename F>
Primitive* visit_arithmetic(Operation op, const F& f) {
  switch (op) {
    case Operation::add: return f.template operator()<Operation::add>();
    case Operation::sub: return f.template operator()<Operation::sub>();
    case Operation::mul: return f.template operator()<Operation::mul>();
    default: return nullptr;
  }
}

template <typename T>
Primitive* find_pair(Operation inner, Operation outer, bool is_second) {
  return visit_arithmetic(inner, [&]<Operation first>() {
    return visit_arithmetic(outer, [&]<Operation second>() -> Primitive* {
      return is_second ? run_pair<T, first, second, true> : run_pair<T, first, second, false>;
    });
  });
}

template <Operation op>
FOURFOLD_FN Mask compared(const Floats& a, const Floats& b) {
  switch (op) {
    case Operation::lt: return less(a, b);
    case Operation::le: return at_most(a, b);
    case Operation::gt: return less(b, a);
    case Operation::ge: return at_most(b, a);
    case Operation::eq: return equal(a, b);
    default: return opposite(equal(a, b));
  }
}

template <Operation op>
void run_comparison(Frame& frame, int64_t n, const Instruction& at) {
  uint8_t* to = static_cast<uint8_t*>(frame.slots[at.out].data);
  const auto a = elements<float>(frame.slots[at.in[0]]), b = elements<float>(frame.slots[at.in[1]]);
  for (int64_t k = 0; k < n; k += Floats::size()) {
    const int64_t count = n - k < Floats::size() ? n - k : Floats::size();
    store_mask(to + k, compared<op>(vector_at(a, k, count), vector_at(b, k, count)), count);
  }
}

void run_where(Frame& frame, int64_t n, const Instruction& at) {
  float* to = static_cast<float*>(frame.slots[at.out].data);
  const Slot& masks = frame.slots[at.in[0]];
  const uint8_t* mask = static_cast<const uint8_t*>(masks.data);
  const auto yes = elements<float>(frame.slots[at.in[1]]), no = elements<float>(frame.slots[at.in[2]]);
  const Mask all = all_or_none(*mask != 0);
  for (int64_t k = 0; k < n; k += Floats::size()) {
    const int64_t count = n - k < Floats::size() ? n - k : Floats::size();
    const Mask chosen = masks.stride == 0 ? all : load_mask(mask + k, count);
    const Floats result = choose(chosen, vector_at(yes, k, count), vector_at(no, k, count));
    count == Floats::size() ? result.store(to + k) : result.store(to + k, static_cast<int>(count));
  }
}

template <typename T>
Primitive* find(Operation op) {
  return visit_operation<Primitive>(op, []<Operation one>() -> Primitive* {
    constexpr Rule rule = program::describe(one).rule;
    if constexpr (rule == Rule::floating || rule == Rule::numbers) return run<T, one>;
    if constexpr (std::is_same_v<T, float> && rule == Rule::comparison) return run_comparison<one>;
    if constexpr (std::is_same_v<T, float> && one == Operation::where) return run_where;
    return nullptr;
  });
}

template <typename T>
void run_sincos(Frame& frame, int64_t n, const Instruction& at) {
  T* sines = static_cast<T*>(frame.slots[at.out].data);
  T* cosines = static_cast<T*>(frame.slots[at.second].data);
  const Elements<T> in = elements<T>(frame.slots[at.in[0]]);
  constexpr int64_t size = Vectorized<T>::size();
  const Ahead ahead(frame);
  for (int64_t k = 0; k < n; k += size) {
    ahead.fetch(k * sizeof(T));
    const int64_t count = n - k < size ? n - k : size;
    const auto both = sincos(vector_at(in, k, count));
    if (count == size) {
      both.sin.store(sines + k);
      both.cos.store(cosines + k);
    } else {
      both.sin.store(sines + k, static_cast<int>(count));
      both.cos.store(cosines + k, static_cast<int>(count));
    }
  }
}

// float16 and bfloat16 to float32: one vector of 16-bit values gives two of float32.
template <typename T>
void widen(Frame& frame, int64_t n, const Instruction& at) {
  const T* from = static_cast<const T*>(frame.slots[at.in[0]].data);
  float* to = static_cast<float*>(frame.slots[at.out].data);
  if (frame.slots[at.in[0]].stride == 0) {
    for (int64_t k = 0; k < n; ++k) to[k] = static_cast<float>(*from);
    return;
  }
  constexpr int64_t half = Vectorized<float>::size();
  for (int64_t k = 0; k < n; k += step_size<T>) {
    const int64_t count = n - k < step_size<T> ? n - k : step_size<T>;
    const Step<T> step = load(from + k, count);
    for (int64_t p = 0; p < parts<T> && p * half < count; ++p) {
      const int64_t left = count - p * half;
      left >= half ? step.part[p].store(to + k + p * half) : step.part[p].store(to + k + p * half, static_cast<int>(left));
    }
  }
}

template <typename T>
FOURFOLD_FN Step<T> load_wide(const float* from, int64_t count) {
  constexpr int64_t half = Vectorized<float>::size();
  Step<T> step;
  for (int64_t p = 0; p < parts<T>; ++p) {
    const int64_t left = count - p * half;
    step.part[p] = left >= half ? Vectorized<float>::loadu(from + p * half)
                   : left > 0   ? Vectorized<float>::loadu(from + p * half, left)
                                : Vectorized<float>(0.0f);
  }
  return step;
}

template <typename T>
void narrow(Frame& frame, int64_t n, const Instruction& at) {
  const Slot& in = frame.slots[at.in[0]];
  T* to = static_cast<T*>(frame.slots[at.out].data);
  if (in.stride == 0) {
    const T value(*static_cast<const float*>(in.data));
    for (int64_t k = 0; k < n; ++k) to[k] = value;
    return;
  }
  for (int64_t k = 0; k < n; k += step_size<T>) {
    const int64_t count = n - k < step_size<T> ? n - k : step_size<T>;
    store(to + k, load_wide<T>(static_cast<const float*>(in.data) + k, count), count);
  }
}

}  // namespace

Primitive* paired_primitive(Operation inner, Operation outer, bool is_second, Type type) {
  if (!program::is_floating(type)) return nullptr;
  return type == Type::float32 ? find_pair<float>(inner, outer, is_second) : find_pair<double>(inner, outer, is_second);
}

Primitive* floating_primitive(Operation op, Type type) {
  return type == Type::float32 ? find<float>(op) : type == Type::float64 ? find<double>(op) : nullptr;
}

Primitive* sincos_primitive(Type type) { return type == Type::float32 ? run_sincos<float> : run_sincos<double>; }

Primitive* half_load_primitive(Kind kind) { return kind == Kind::bfloat16 ? widen<c10::BFloat16> : widen<c10::Half>; }

Primitive* half_store_primitive(Kind kind) { return kind == Kind::bfloat16 ? narrow<c10::BFloat16> : narrow<c10::Half>; }

}  // namespace fourfold::cpu::FOURFOLD_CPU_LEVEL
