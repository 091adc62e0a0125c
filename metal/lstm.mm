#include "ops/lstm.h"

#include "ops/backend.h"
#include "ops/registration.h"
#include "recurrent.h"

namespace fourfold::mps {
namespace {

const Cell& lstm_cell() { return cell<Lstm>("fourfold::lstm", "Lstm"); }

constexpr RecurrentKernels lstm_kernels = recurrent_kernels<lstm_cell>;

}  // namespace
}  // namespace fourfold::mps

FOURFOLD_KERNELS(MPS, m) {
  m.impl("lstm", FOURFOLD_BOX(lstm, mps::lstm_kernels));
  m.impl("lstm_backward", FOURFOLD_BOX(lstm_backward, mps::lstm_kernels));
}
