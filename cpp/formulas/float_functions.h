// expm1, log1p and erfc of a float32, for languages without them: the reductions and polynomials of cpu/kernels for a
// single number. NaN, infinities and signed zeros are as in C. Bounds in ulp, tested over all floats: expm1 1.6, log1p
// 1.3, erfc 3.5. On devices that flush subnormal numbers, subnormal operands and results are zero. Needs abs, fma,
// copysign, as_bits<int32>(x) and of_bits<float32>(bits).

// x = n ln2 + r with |r| <= ln2 / 2; shifted is n + 1.5 2^23, whose low bits are n.
struct ExpReduced {
  float32 shifted, r;
};
FOURFOLD_FN ExpReduced exp_reduced(float32 x) {
  const float32 shifted = fma(x, 1.442695041f, 12582912.0f);
  const float32 n = shifted - 12582912.0f;
  return {shifted, fma(n, -1.42860677e-6f, fma(n, -0.693145751953125f, x))};
}

// expm1 for |r| <= ln2 / 2
FOURFOLD_FN float32 expm1_near(float32 r) {
  float32 q = fma(0.001394642686f, r, 0.008366571397f);
  q = fma(q, r, 0.04166628247f);
  q = fma(q, r, 0.1666654312f);
  q = fma(q, r, 0.5000000062f);
  return fma(q, r * r, r);
}

// 2^(n + by), a normal number
FOURFOLD_FN float32 power_of_two(float32 shifted, int32 by) {
  return of_bits<float32>(int32(uint32(as_bits<int32>(shifted) + (127 + by)) << 23));
}

FOURFOLD_FN float32 expm1_of_float(float32 x) {
  const float32 above = x < -30.0f ? -30.0f : x;
  const ExpReduced of = exp_reduced(above > 89.0f ? 89.0f : above);
  const float32 half = power_of_two(of.shifted, -1);  // 2^n itself overflows for the largest arguments
  const float32 result = fma(half, expm1_near(of.r), half - 0.5f) * 2.0f;
  return abs(x) < 5.4210109e-20f ? x : result;  // halving a very small number loses a bit
}

// log(2^e (1 + f)), -1/4 <= f < 1/2
FOURFOLD_FN float32 log_of_parts(float32 e, float32 f) {
  float32 p = fma(-4.515222e-02f, f, 1.0472555e-01f);
  p = fma(p, f, -1.3163942e-01f);
  p = fma(p, f, 1.4477631e-01f);
  p = fma(p, f, -1.6646878e-01f);
  p = fma(p, f, 1.9990848e-01f);
  p = fma(p, f, -2.500011e-01f);
  p = fma(p, f, 3.333345e-01f);
  const float32 tail = fma(p, f, -0.5f) * f;  // f² of a very small f would be subnormal
  return fma(e, 0.693145751953125f, fma(tail, f, fma(e, 1.42860677e-6f, f)));
}

FOURFOLD_FN float32 log1p_of_float(float32 x) {
  // Scaling x and 1 separately keeps the bits of x that 1 + x loses.
  const int32 shift = int32(uint32(as_bits<int32>(1.0f + x) - as_bits<int32>(0.75f)) & 0xff800000u);
  const float32 four = of_bits<float32>(as_bits<int32>(4.0f) - shift);  // 4 / 2^e, normal also for the largest e
  const float32 f = of_bits<float32>(as_bits<int32>(x) - shift) + fma(four, 0.25f, -1.0f);
  const float32 result = copysign(log_of_parts(float32(shift >> 23), f), x);
  const float32 infinity = of_bits<float32>(0x7f800000);
  if (x > -1.0f && x < infinity) return result;
  return x == -1.0f ? -infinity : x < -1.0f ? of_bits<float32>(0x7fc00000) : x;
}

// 1 - x Q(x²) within ±1/2; beyond, with t = 3 / (|x| + 3), erfc(|x|) = t P(1 - 2 t) exp(-x²), with corrections for the
// rounding errors of x² and t.
FOURFOLD_FN float32 erfc_of_float(float32 x) {
  const float32 a = abs(x) > 10.5f ? 10.5f : abs(x);  // erfc(10.5) is zero
  const float32 square = a * a;
  float32 q = fma(4.3534455e-03f, square, -2.6547778e-02f);
  q = fma(q, square, 1.12787835e-01f);
  q = fma(q, square, -3.7612316e-01f);
  q = fma(q, square, 1.1283791e+00f);
  if (a < 0.5f) return fma(q, -x, 1.0f);
  const float32 divisor = a + 3.0f, t = 3.0f / divisor;
  const float32 lost = fma(-t, a - (divisor - 3.0f), fma(-t, divisor, 3.0f)) * (t * (1.0f / 3.0f));
  const float32 u = fma(lost, -2.0f, fma(t, -2.0f, 1.0f));
  float32 p = fma(-1.042729e-04f, u, -1.5562591e-04f);
  p = fma(p, u, 1.0235243e-03f);
  p = fma(p, u, -4.1414186e-04f);
  p = fma(p, u, -8.94591e-03f);
  p = fma(p, u, 3.984464e-02f);
  p = fma(p, u, -1.0348872e-01f);
  p = fma(p, u, 1.9674261e-01f);
  p = fma(p, u, -2.9446483e-01f);
  p = fma(p, u, 3.580023e-01f);
  const float32 product = p * (t + lost);
  const ExpReduced of = exp_reduced(-square);
  const float32 power = fma(product, expm1_near(of.r - fma(a, a, -square)), product);
  const float32 above = power * power_of_two(of.shifted, 64) * 5.4210109e-20f;  // 2^n itself may be subnormal
  return x < 0.0f ? 2.0f - above : above;
}
