#include "ops/lltm.h"

#include "ops/backend.h"
#include "ops/registration.h"
#include "recurrent.h"

namespace fourfold::mps {
namespace {

const Cell& lltm_cell() { return cell<Lltm>("fourfold::lltm", "Lltm"); }

constexpr RecurrentKernels lltm_kernels = recurrent_kernels<lltm_cell>;

}  // namespace
}  // namespace fourfold::mps

FOURFOLD_KERNELS(MPS, m) {
  m.impl("lltm", FOURFOLD_BOX(lltm, mps::lltm_kernels));
  m.impl("lltm_backward", FOURFOLD_BOX(lltm_backward, mps::lltm_kernels));
}
