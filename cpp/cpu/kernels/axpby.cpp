#include "cpu/kernels/axpby.h"

#include "cpu/kernels/math.h"

namespace fourfold::cpu::FOURFOLD_CPU_LEVEL {

namespace formulas {
#include "formulas/axpby.h"
}

namespace {

// Integers wrap around, as torch's do; in unsigned arithmetic that is defined.
template <typename T>
void integer_axpby(int64_t n, void* out, Strided x, Strided y, double alpha, double beta) {
  const T* px = static_cast<const T*>(x.data);
  const T* py = static_cast<const T*>(y.data);
  T* to = static_cast<T*>(out);
  const auto a = static_cast<uint64_t>(static_cast<int64_t>(alpha));
  const auto b = static_cast<uint64_t>(static_cast<int64_t>(beta));
  for (int64_t k = 0; k < n; ++k) {
    to[k] = static_cast<T>(formulas::axpby<uint64_t>(
        static_cast<uint64_t>(px[k * x.stride]), static_cast<uint64_t>(py[k * y.stride]), a, b));
  }
}

}  // namespace

void axpby(Kind kind, int64_t n, void* out, Strided x, Strided y, double alpha, double beta) {
  switch (kind) {
    case Kind::boolean: return integer_axpby<bool>(n, out, x, y, alpha, beta);
    case Kind::uint8: return integer_axpby<uint8_t>(n, out, x, y, alpha, beta);
    case Kind::int8: return integer_axpby<int8_t>(n, out, x, y, alpha, beta);
    case Kind::int16: return integer_axpby<int16_t>(n, out, x, y, alpha, beta);
    case Kind::int32: return integer_axpby<int32_t>(n, out, x, y, alpha, beta);
    case Kind::int64: return integer_axpby<int64_t>(n, out, x, y, alpha, beta);
    default: break;
  }
  visit_floating(kind, [&](auto type) {
    using T = decltype(type);
    const Vec<T> a(static_cast<Compute<T>>(alpha));
    const Vec<T> b(static_cast<Compute<T>>(beta));
    map<T>(n, out, [&](const Vec<T>& u, const Vec<T>& v) { return formulas::axpby(u, v, a, b); }, x, y);
  });
}

}  // namespace fourfold::cpu::FOURFOLD_CPU_LEVEL
