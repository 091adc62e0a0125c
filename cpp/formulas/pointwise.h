// The operations of pointwise programs (program/operations.h) that are arithmetic. T is a number or a vector of numbers; a
// comparison of two T gives a mask, which for a number is bool. Needs select(mask, yes, no) for T; for floating point abs,
// sqrt, trunc, floor and fmod; and, as they are, what else of those operations is not here: exp, log, sin and the like.

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

// 0 for NaN, as torch's.
template <typename T>
FOURFOLD_FN T sign(T x) { return select(x > T(0), T(1), select(x < T(0), T(-1), T(0))); }

// NaN where either is.
template <typename T>
FOURFOLD_FN T minimum(T a, T b) { return select((a < b) | (a != a), a, b); }
template <typename T>
FOURFOLD_FN T maximum(T a, T b) { return select((a > b) | (a != a), a, b); }

template <typename T>
FOURFOLD_FN T reciprocal(T x) { return T(1) / x; }
template <typename T>
FOURFOLD_FN T rsqrt(T x) { return T(1) / sqrt(x); }

// Python's %, whose sign is the divisor's.
template <typename T>
FOURFOLD_FN T remainder(T a, T b) {
  const T left = fmod(a, b);
  return select((left != T(0)) & ((b < T(0)) ^ (left < T(0))), left + b, left);
}

// Python's //. What is left over makes the quotient whole but for rounding, which the last line mends.
template <typename T>
FOURFOLD_FN T floor_divide(T a, T b) {
  const T left = fmod(a, b);
  const T exact = (a - left) / b;
  const T lower = select((left != T(0)) & ((b < T(0)) ^ (left < T(0))), exact - T(1), exact);
  const T whole = floor(lower);
  const T rounded = select(lower - whole > T(0.5), whole + T(1), whole);
  return select(b == T(0), a / b, select(lower == T(0), copysign(T(0), a / b), rounded));
}

// Of integers: of 0 and -1, by which processors fault, the quotients are 0 and -a, which wraps around.
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

// By less than nothing, or by all bits, leaves none of them, or copies of the sign.
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
