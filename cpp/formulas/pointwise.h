// The arithmetic operations of pointwise programs (program/operations.h). T is a number or a vector; a comparison of
// two T gives a mask, which is bool for a number. Needs select(mask, yes, no) for T and, for floating point, abs, sqrt,
// trunc, floor and fmod. The including file defines the other operations, such as exp, log and sin.

template <typename T>
FOURFOLD_FN T neg(T x) { return -x; }
template <typename T>
FOURFOLD_FN T add(T a, T b) { return a + b; }
template <typename T>
FOURFOLD_FN T sub(T a, T b) { return a - b; }
template <typename T>
FOURFOLD_FN T mul(T a, T b) { return a * b; }
template <typename T>
FOURFOLD_FN T div(T a, T b) { return a / b; }

// 0 for NaN, as in torch.
template <typename T>
FOURFOLD_FN T sign(T x) { return select(x > T(0), T(1), select(x < T(0), T(-1), T(0))); }

// NaN if either operand is.
template <typename T>
FOURFOLD_FN T minimum(T a, T b) { return select((a < b) | (a != a), a, b); }
template <typename T>
FOURFOLD_FN T maximum(T a, T b) { return select((a > b) | (a != a), a, b); }

template <typename T>
FOURFOLD_FN T reciprocal(T x) { return T(1) / x; }
template <typename T>
FOURFOLD_FN T rsqrt(T x) { return T(1) / sqrt(x); }

// Python's %: the result has the divisor's sign.
template <typename T>
FOURFOLD_FN T remainder(T a, T b) {
  const T left = fmod(a, b);
  return select((left != T(0)) & ((b < T(0)) ^ (left < T(0))), left + b, left);
}

// Python's //. Without the remainder the quotient is whole up to rounding, which the last lines correct.
template <typename T>
FOURFOLD_FN T floor_divide(T a, T b) {
  const T left = fmod(a, b);
  const T exact = (a - left) / b;
  const T lower = select((left != T(0)) & ((b < T(0)) ^ (left < T(0))), exact - T(1), exact);
  const T whole = floor(lower);
  const T rounded = select(lower - whole > T(0.5), whole + T(1), whole);
  return select(b == T(0), a / b, select(lower == T(0), copysign(T(0), a / b), rounded));
}

// Integer division. The divisors 0 and -1 can trap on CPUs: their quotients are 0 and -a (wrapping around).
template <typename T>
FOURFOLD_FN T integer_trunc_divide(T a, T b) { return b == T(-1) ? neg(a) : b == T(0) ? T(0) : a / b; }
template <typename T>
FOURFOLD_FN T integer_fmod(T a, T b) { return b == T(-1) || b == T(0) ? T(0) : a % b; }
template <typename T>
FOURFOLD_FN T integer_remainder(T a, T b) {
  const T left = integer_fmod(a, b);
  return left != T(0) && (left < T(0)) != (b < T(0)) ? left + b : left;
}
template <typename T>
FOURFOLD_FN T integer_floor_divide(T a, T b) {
  const T quotient = integer_trunc_divide(a, b);
  return integer_fmod(a, b) != T(0) && (a < T(0)) != (b < T(0)) ? quotient - T(1) : quotient;
}

// Shifts by negative numbers or by all bits give 0 or, to the right, copies of the sign bit.
template <typename T>
FOURFOLD_FN T shift_left(T x, T by) {
  const T bits = T(8 * sizeof(T));
  return by < T(0) || by >= bits ? T(0) : x << by;
}
template <typename T>
FOURFOLD_FN T shift_right(T x, T by) {
  const T bits = T(8 * sizeof(T));
  return x >> (by < T(0) || by >= bits ? bits - T(1) : by);
}

template <typename T>
FOURFOLD_FN T bitwise_and(T a, T b) { return a & b; }
template <typename T>
FOURFOLD_FN T bitwise_or(T a, T b) { return a | b; }
template <typename T>
FOURFOLD_FN T bitwise_xor(T a, T b) { return a ^ b; }
template <typename T>
FOURFOLD_FN T bitwise_not(T x) { return ~x; }

template <typename T>
FOURFOLD_FN auto eq(T a, T b) { return a == b; }
template <typename T>
FOURFOLD_FN auto ne(T a, T b) { return a != b; }
template <typename T>
FOURFOLD_FN auto lt(T a, T b) { return a < b; }
template <typename T>
FOURFOLD_FN auto le(T a, T b) { return a <= b; }
template <typename T>
FOURFOLD_FN auto gt(T a, T b) { return a > b; }
template <typename T>
FOURFOLD_FN auto ge(T a, T b) { return a >= b; }

template <typename Mask, typename T>
FOURFOLD_FN T where(Mask mask, T yes, T no) { return select(mask, yes, no); }
