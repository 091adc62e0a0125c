#include "cpu/kernels/softshrink.h"

#include "cpu/kernels/math.h"

namespace fourfold::cpu::FOURFOLD_CPU_LEVEL {

namespace formulas {
#include "formulas/softshrink.h"
}

void softshrink(Kind kind, int64_t n, void* out, Strided x, double lambd) {
  visit_floating(kind, [&](auto type) {
    using T = decltype(type);
    const Vec<T> threshold(static_cast<Compute<T>>(lambd));
    map<T>(n, out, [&](const Vec<T>& v) { return formulas::softshrink(v, threshold); }, x);
  });
}

void softshrink_backward(Kind kind, int64_t n, void* out, Strided grad, Strided x, double lambd) {
  visit_floating(kind, [&](auto type) {
    using T = decltype(type);
    const Vec<T> threshold(static_cast<Compute<T>>(lambd));
    map<T>(
        n, out, [&](const Vec<T>& g, const Vec<T>& v) { return formulas::softshrink_backward(g, v, threshold); }, grad,
        x);
  });
}

}  // namespace fourfold::cpu::FOURFOLD_CPU_LEVEL
