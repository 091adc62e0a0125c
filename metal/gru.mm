#include "ops/gru.h"

#include "ops/backend.h"
#include "ops/registration.h"
#include "recurrent.h"

namespace fourfold::mps {
namespace {

const Cell& gru_cell() { return cell<Gru>("fourfold::gru", "Gru"); }

constexpr RecurrentKernels gru_kernels = recurrent_kernels<gru_cell>;

}  // namespace
}  // namespace fourfold::mps

FOURFOLD_KERNELS(MPS, m) {
  m.impl("gru", FOURFOLD_BOX(gru, mps::gru_kernels));
  m.impl("gru_backward", FOURFOLD_BOX(gru_backward, mps::gru_kernels));
}
