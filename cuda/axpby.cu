#include "ops/axpby.h"

#include <torch/csrc/stable/library.h>

#include "elementwise.cuh"
#include "math.cuh"
#include "ops/backend.h"

namespace fourfold::gpu {
namespace formulas {
#include "formulas/axpby.h"
}

namespace {

template <typename V>
struct Forward {
  using Value = V;
  Value alpha;
  Value beta;
  FOURFOLD_FN Value operator()(Value x, Value y) const { return formulas::axpby(x, y, alpha, beta); }
};

// Integers wrap around, as torch's do; in unsigned arithmetic that is defined.
template <typename T>
void map_integers(const Elementwise<2>& x_and_y, double alpha, double beta) {
  map<T>(x_and_y, Forward<uint64_t>{static_cast<uint64_t>(static_cast<int64_t>(alpha)),
                                    static_cast<uint64_t>(static_cast<int64_t>(beta))});
}

void forward(const Elementwise<2>& x_and_y, double alpha, double beta) {
  switch (x_and_y.kind()) {
    case Kind::boolean: return map_integers<bool>(x_and_y, alpha, beta);
    case Kind::uint8: return map_integers<uint8_t>(x_and_y, alpha, beta);
    case Kind::int8: return map_integers<int8_t>(x_and_y, alpha, beta);
    case Kind::int16: return map_integers<int16_t>(x_and_y, alpha, beta);
    case Kind::int32: return map_integers<int32_t>(x_and_y, alpha, beta);
    case Kind::int64: return map_integers<int64_t>(x_and_y, alpha, beta);
    default: break;
  }
  visit_floating(x_and_y.kind(), [&](auto type) {
    using T = typename decltype(type)::type;
    using V = Compute<T>;
    map<T>(x_and_y, Forward<V>{static_cast<V>(alpha), static_cast<V>(beta)});
  });
}

constexpr AxpbyKernels axpby_kernels{forward};

}  // namespace
}  // namespace fourfold::gpu

STABLE_TORCH_LIBRARY_IMPL(fourfold, CUDA, m) { m.impl("axpby", FOURFOLD_BOX(axpby, gpu::axpby_kernels)); }
