#include "ops/mlp_layers.h"

#include "cpu/activate.h"
#include "cpu/dense.h"
#include "cpu/kernels/mlp_layers.h"
#include "ops/backend.h"
#include "ops/registration.h"

namespace fourfold::cpu {
namespace {

void store_bits(const Tensor& values, void* bits, int64_t step) {
  pack_bits(kind_of(values.scalar_type()), values.size(0), values.size(1), data_of(values), bits, step);
}

void load_bits(const Tensor& values, const void* bits, int64_t step) {
  unpack_bits(kind_of(values.scalar_type()), values.size(0), values.size(1), bits, step, out_data(values));
}

constexpr MlpLayersKernels kernels{
    .low_precision = false,
    .keeps_bits = true,
    .fuses = fuses_layer,
    .fuses_backward = fuses_backward_of,
    .forward = [](const LayersForward& job) { mlp_layers(job); },
    .backward = [](const LayersBackward& job) { mlp_layers_backward(job); },
    .activate = activate_all,
    .activate_backward = differentiate_all,
    .pack_bits = store_bits,
    .unpack_bits = load_bits,
};

}  // namespace
}  // namespace fourfold::cpu

FOURFOLD_KERNELS(CPU, m) {
  m.impl("mlp_layers", FOURFOLD_BOX(mlp_layers, cpu::kernels));
  m.impl("mlp_layers_backward", FOURFOLD_BOX(mlp_layers_backward, cpu::kernels));
}
