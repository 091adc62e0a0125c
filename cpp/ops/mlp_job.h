// The jobs of the small network's kernels.
#pragma once

#include "ops/kind.h"

namespace fourfold {

// A whole small network in one pass over x. All tensors are contiguous and of dtype `kind`.
struct MlpForward {
  Place place;
  Kind kind;
  int64_t batch;
  int64_t input_size;
  int64_t hidden_size;
  int64_t output_size;
  Input x;               // (batch, input_size)
  Input hidden_weights;  // (hidden_size, input_size)
  Input hidden_bias;     // (hidden_size), or null for zero
  Input output_weights;  // (output_size, hidden_size)
  Input output_bias;     // (output_size), or null for zero
  bool keep;                   // whether to write `hidden`; otherwise it stays in the cache
  Output hidden;                // out (batch, hidden_size): after relu
  Output output;                // out (batch, output_size)
};

struct MlpBackward {
  Place place;
  Kind kind;
  int64_t batch;
  int64_t input_size;
  int64_t hidden_size;
  int64_t output_size;
  Input grad;  // (batch, output_size)
  Input x;
  Input hidden_weights;
  Input output_weights;
  Input hidden;
  Output grad_hidden;          // out (batch, hidden_size): the gradient of the hidden layer before relu
  bool need_x;
  bool need_weights;
  Output grad_x;               // out, if need_x; the others if need_weights
  Output grad_hidden_weights;
  Output grad_hidden_bias;
  Output grad_output_weights;
  Output grad_output_bias;
};

}  // namespace fourfold
