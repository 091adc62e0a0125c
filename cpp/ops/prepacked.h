// Packed weights as byte tensors. A header describes them, so that calls with mismatched packed weights raise an error.
#pragma once

#include "ops/recurrent.h"

namespace fourfold {

// The size in bytes of a layer's prepacked weights, including the header. dtype: of the weights.
int64_t prepacked_size(const RecurrentKernels& kernels, ScalarType dtype, int64_t input_size, int64_t hidden_size);

// Packs weights for run_forward(). Only this build at this CPU level can read them.
Tensor prepack_weights(
    const RecurrentKernels& kernels, const RecurrentCell& cell, const char* op, const RecurrentWeights& weights);

// The weights in `prepacked`. Throws an error if they were packed for another cell, dtype, size, set of biases or CPU
// level.
const void* weights_in(
    const Tensor& prepacked, const RecurrentKernels& kernels, const RecurrentCell& cell, const RecurrentShape& shape,
    const RecurrentArguments& arguments);

}  // namespace fourfold
