// The operations of pointwise programs (program/operations.h) by name, for numbers and for Vecs in registers; a number
// is broadcast to the lanes of a Vec operand. Needs the struct Vec<T, n> with the lanes v[n], and in the namespace
// `numbers` each operation on numbers.

// The number of lanes of the operands; 0 if all are numbers. Element: the type of the first Vec's lanes.
template <typename... Operands>
struct Shape {
  enum { lanes = 0 };
};
template <typename T, typename... Others>
struct Shape<T, Others...> : Shape<Others...> {};
template <typename T, int n, typename... Others>
struct Shape<Vec<T, n>, Others...> {
  enum { lanes = n };
  typedef T Element;
};

template <typename T>
FOURFOLD_FN T lane(T x, int) { return x; }
template <typename T, int n>
FOURFOLD_FN T lane(Vec<T, n> x, int k) { return x.v[k]; }

template <int n>
struct Each {
  template <typename F, typename... Operands>
  FOURFOLD_FN static auto of(F f, Operands... x) {
    Vec<decltype(f(lane(x, 0)...)), n> result;
#pragma unroll
    for (int k = 0; k < n; ++k) result.v[k] = f(lane(x, k)...);
    return result;
  }
};
template <>
struct Each<0> {
  template <typename F, typename... Operands>
  FOURFOLD_FN static auto of(F f, Operands... x) { return f(x...); }
};

// Applies f to each lane of the operands.
template <typename F, typename... Operands>
FOURFOLD_FN auto each(F f, Operands... x) { return Each<Shape<Operands...>::lanes>::of(f, x...); }

#define FOURFOLD_LANES(name)                                                                                            \
  struct Each_##name { template <typename... T> FOURFOLD_FN auto operator()(T... x) const { return numbers::name(x...); } }; \
  template <typename... T> FOURFOLD_FN auto name(T... x) { return each(Each_##name(), x...); }
FOURFOLD_LANES(neg) FOURFOLD_LANES(abs) FOURFOLD_LANES(sign) FOURFOLD_LANES(add) FOURFOLD_LANES(sub)
FOURFOLD_LANES(mul) FOURFOLD_LANES(minimum) FOURFOLD_LANES(maximum) FOURFOLD_LANES(div) FOURFOLD_LANES(copysign)
FOURFOLD_LANES(sqrt) FOURFOLD_LANES(rsqrt) FOURFOLD_LANES(reciprocal)
FOURFOLD_LANES(pow) FOURFOLD_LANES(atan2) FOURFOLD_LANES(fmod) FOURFOLD_LANES(remainder) FOURFOLD_LANES(floor_divide)
FOURFOLD_LANES(exp) FOURFOLD_LANES(exp2) FOURFOLD_LANES(expm1) FOURFOLD_LANES(log) FOURFOLD_LANES(log2)
FOURFOLD_LANES(log10) FOURFOLD_LANES(log1p) FOURFOLD_LANES(sin) FOURFOLD_LANES(cos) FOURFOLD_LANES(tan)
FOURFOLD_LANES(asin) FOURFOLD_LANES(acos) FOURFOLD_LANES(atan) FOURFOLD_LANES(sinh) FOURFOLD_LANES(cosh)
FOURFOLD_LANES(tanh) FOURFOLD_LANES(asinh) FOURFOLD_LANES(acosh) FOURFOLD_LANES(atanh) FOURFOLD_LANES(sigmoid)
FOURFOLD_LANES(erf) FOURFOLD_LANES(erfc)
FOURFOLD_LANES(floor) FOURFOLD_LANES(ceil) FOURFOLD_LANES(trunc) FOURFOLD_LANES(round)
FOURFOLD_LANES(integer_floor_divide) FOURFOLD_LANES(integer_trunc_divide) FOURFOLD_LANES(integer_remainder)
FOURFOLD_LANES(integer_fmod) FOURFOLD_LANES(shift_left) FOURFOLD_LANES(shift_right)
FOURFOLD_LANES(bitwise_and) FOURFOLD_LANES(bitwise_or) FOURFOLD_LANES(bitwise_xor) FOURFOLD_LANES(bitwise_not)
FOURFOLD_LANES(eq) FOURFOLD_LANES(ne) FOURFOLD_LANES(lt) FOURFOLD_LANES(le) FOURFOLD_LANES(gt) FOURFOLD_LANES(ge)
FOURFOLD_LANES(where)
FOURFOLD_LANES(to_boolean) FOURFOLD_LANES(to_int32) FOURFOLD_LANES(to_float32) FOURFOLD_LANES(to_int8)
FOURFOLD_LANES(to_uint8) FOURFOLD_LANES(to_int16) FOURFOLD_LANES(to_bfloat16) FOURFOLD_LANES(to_float16)
FOURFOLD_LANES(to_int64) FOURFOLD_LANES(exchange)

// Converts a number to the type of the other operand's lanes.
template <typename... Operands, typename T>
FOURFOLD_FN auto beside(T x) { return typename Shape<Operands...>::Element(x); }
template <typename... Operands, typename T, int n>
FOURFOLD_FN Vec<T, n> beside(Vec<T, n> x) { return x; }

// Operators of two operands, at least one of which is a Vec.
#define FOURFOLD_OPERATOR(symbol, name)                                                             \
  template <typename A, typename B, typename = typename Shape<A, B>::Element>                       \
  FOURFOLD_FN auto operator symbol(A a, B b) { return name(beside<A, B>(a), beside<A, B>(b)); }
FOURFOLD_OPERATOR(+, add)
FOURFOLD_OPERATOR(-, sub)
FOURFOLD_OPERATOR(*, mul)
FOURFOLD_OPERATOR(/, div)
FOURFOLD_OPERATOR(&, bitwise_and)
FOURFOLD_OPERATOR(|, bitwise_or)
FOURFOLD_OPERATOR(^, bitwise_xor)
FOURFOLD_OPERATOR(==, eq)
FOURFOLD_OPERATOR(!=, ne)
FOURFOLD_OPERATOR(<, lt)
FOURFOLD_OPERATOR(<=, le)
FOURFOLD_OPERATOR(>, gt)
FOURFOLD_OPERATOR(>=, ge)
#undef FOURFOLD_OPERATOR
template <typename T, int n>
FOURFOLD_FN Vec<T, n> operator-(Vec<T, n> x) { return neg(x); }
template <typename T, int n>
FOURFOLD_FN Vec<T, n> operator~(Vec<T, n> x) { return bitwise_not(x); }
template <int n>
FOURFOLD_FN Vec<bool, n> operator!(Vec<bool, n> x) { return bitwise_not(x); }

template <int n, typename T>
FOURFOLD_FN Vec<T, n> splat(T x) {
  Vec<T, n> result;
#pragma unroll
  for (int k = 0; k < n; ++k) result.v[k] = x;
  return result;
}

// Reduces the lanes by halving; n is a power of two.
template <int n>
struct Fold {
  template <typename F, typename T>
  FOURFOLD_FN static T of(F f, Vec<T, n> x) {
    Vec<T, n / 2> half;
#pragma unroll
    for (int k = 0; k < n / 2; ++k) half.v[k] = f(x.v[k], x.v[k + n / 2]);
    return Fold<n / 2>::of(f, half);
  }
};
template <>
struct Fold<1> {
  template <typename F, typename T>
  FOURFOLD_FN static T of(F, Vec<T, 1> x) { return x.v[0]; }
};

template <typename T, int n>
FOURFOLD_FN T fold_sum(Vec<T, n> x) { return Fold<n>::of(Each_add(), x); }
template <typename T, int n>
FOURFOLD_FN T fold_prod(Vec<T, n> x) { return Fold<n>::of(Each_mul(), x); }
template <typename T, int n>
FOURFOLD_FN T fold_amax(Vec<T, n> x) { return Fold<n>::of(Each_maximum(), x); }
template <typename T, int n>
FOURFOLD_FN T fold_amin(Vec<T, n> x) { return Fold<n>::of(Each_minimum(), x); }
template <int n>
FOURFOLD_FN bool fold_all(Vec<bool, n> x) { return Fold<n>::of(Each_bitwise_and(), x); }
template <int n>
FOURFOLD_FN bool fold_any(Vec<bool, n> x) { return Fold<n>::of(Each_bitwise_or(), x); }
