// The Apple GPU's kernel table and registration of an elementwise operator. Compiled for each operator in CMake's list,
// which defines FOURFOLD_OPERATOR (its name), FOURFOLD_BODIES and FOURFOLD_BODIES_FILE, and FOURFOLD_FORMULA and
// FOURFOLD_FORMULA_FILE.
#include FOURFOLD_BODIES_FILE

#include "map.h"
#include "ops/formula.h"
#include "ops/register_elementwise.h"
#include "ops/registration.h"

namespace fourfold::mps {
namespace formulas {
#include FOURFOLD_FORMULA_FILE
}

extern const Source FOURFOLD_SHADERS;  // elementwise.metal with that formula

namespace {

constexpr const char* label = "fourfold::" FOURFOLD_OPERATOR;

void run(const Elementwise& job, const char* call) {
  constexpr int scalars = static_cast<int>(scalars_of<formulas::FOURFOLD_FORMULA>);
  map(label, job, {FOURFOLD_SHADERS, FOURFOLD_FORMULA_NAME, true, scalars}, call);
}

template <template <typename> typename F>
constexpr ElementwiseKernels kernels_of() {
  ElementwiseKernels kernels{
      .forward = [](const Elementwise& job) { run(job, "Forward"); },
      .backward = nullptr,
      .expect = [](Kind kind) { type_name(kind); },
  };
  if constexpr (has_backward<F>) kernels.backward = [](const Elementwise& job) { run(job, "Backward"); };
  return kernels;
}

constexpr ElementwiseKernels elementwise_kernels = kernels_of<formulas::FOURFOLD_FORMULA>();

}  // namespace
}  // namespace fourfold::mps

FOURFOLD_KERNELS(MPS, m) {
  fourfold::register_elementwise<fourfold::FOURFOLD_BODIES, fourfold::mps::elementwise_kernels>(m, FOURFOLD_OPERATOR);
}
