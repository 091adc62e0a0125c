// Packed weights as tensors: bytes that begin with whose they are, so that a call that they are not for refuses them.
#pragma once

#include "ops/recurrent.h"

namespace fourfold {

// How many bytes a layer's prepacked weights have, header and all; `dtype` is that of the weights.
int64_t prepacked_size(const RecurrentKernels& kernels, ScalarType dtype, int64_t input_size, int64_t hidden_size);

// What run_forward takes as `prepacked`: bytes that only this build on this CPU level knows how to read.
Tensor prepack_weights(
    const RecurrentKernels& kernels, const RecurrentCell& cell, const char* op, const RecurrentWeights& weights);

// The weights in `prepacked`, which were prepacked for the cell and for arguments of that dtype, sizes and biases; throws what
// else they are.
const void* weights_in(
    const Tensor& prepacked, const RecurrentKernels& kernels, const RecurrentCell& cell, const RecurrentShape& shape,
    const RecurrentArguments& arguments);

}  // namespace fourfold
