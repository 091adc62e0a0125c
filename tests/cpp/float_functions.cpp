// The largest errors of formulas/float_functions.h and formulas/erf.h over floats: `float_functions STEP` prints each
// function's name and the error in units in the last place over every STEPth float, or 1e9 for a wrong special value.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#define FOURFOLD_FN inline

namespace {

using int32 = int32_t;
using uint32 = uint32_t;
using float32 = float;

template <typename To, typename From>
To as_bits(From x) { return __builtin_bit_cast(To, x); }
template <typename To, typename From>
To of_bits(From x) { return __builtin_bit_cast(To, x); }

namespace formulas {

float abs(float x) { return __builtin_fabsf(x); }
float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
float copysign(float x, float sign) { return __builtin_copysignf(x, sign); }
float exp(float x) { return ::expf(x); }
template <typename T>
T select(bool mask, T yes, T no) { return mask ? yes : no; }

#include "formulas/erf.h"
#include "formulas/float_functions.h"

}  // namespace formulas

double units(float got, double exact) {
  const float rounded = static_cast<float>(exact);
  if (std::isnan(exact)) return std::isnan(got) ? 0 : 1e9;
  if (std::isinf(rounded) || std::isinf(got)) return got == rounded ? 0 : 1e9;
  if (rounded == 0 && got == 0) return std::signbit(got) == std::signbit(rounded) ? 0 : 1e9;
  const int exponent = std::max(std::ilogb(exact), -126);
  return std::fabs(got - exact) / std::ldexp(1.0, exponent - 23);
}

void measure(const char* name, float (*function)(float), double (*exact)(double), uint64_t step) {
  double worst = 0;
  for (uint64_t bits = 0; bits < uint64_t(1) << 32; bits += step) {
    const float x = of_bits<float>(static_cast<uint32_t>(bits));
    worst = std::max(worst, units(function(x), exact(x)));
  }
  for (float x : {0.0f, -0.0f, 1.0f, -1.0f, 0.5f, -0.5f, 3.4e38f, -3.4e38f, 1e-45f, -1e-45f, INFINITY, -INFINITY, NAN}) {
    worst = std::max(worst, units(function(x), exact(x)));
  }
  std::printf("%s %g\n", name, worst);
}

}  // namespace

int main(int, char** arguments) {
  const uint64_t step = std::strtoull(arguments[1], nullptr, 10);
  measure("expm1", formulas::expm1_of_float, [](double x) { return std::expm1(x); }, step);
  measure("log1p", formulas::log1p_of_float, [](double x) { return std::log1p(x); }, step);
  measure("erfc", formulas::erfc_of_float, [](double x) { return std::erfc(x); }, step);
  measure("erf", formulas::erf_of_float<float>, [](double x) { return std::erf(x); }, step);
}
