// What the small network's kernels are given.
#pragma once

#include "ops/kind.h"

namespace fourfold {

// The whole of a small network in one pass over x. All contiguous and of the type that kind names.
struct MlpForward {
  Place place;
  Kind kind;
  int64_t batch;
  int64_t input_size;
  int64_t hidden_size;
  int64_t output_size;
  const void* x;               // (batch, input_size)
  const void* hidden_weights;  // (hidden_size, input_size)
  const void* hidden_bias;     // (hidden_size), or null for zero
  const void* output_weights;  // (output_size, hidden_size)
  const void* output_bias;     // (output_size), or null for zero
  bool keep;                   // whether `hidden` is written; otherwise it never leaves the cache
  void* hidden;                // out (batch, hidden_size): after relu
  void* output;                // out (batch, output_size)
};

struct MlpBackward {
  Place place;
  Kind kind;
  int64_t batch;
  int64_t input_size;
  int64_t hidden_size;
  int64_t output_size;
  const void* grad;  // (batch, output_size)
  const void* x;
  const void* hidden_weights;
  const void* output_weights;
  const void* hidden;
  void* grad_hidden;          // out (batch, hidden_size): with respect to the hidden layer before relu
  bool need_x;
  bool need_weights;
  void* grad_x;               // out, written if need_x; the others if need_weights
  void* grad_hidden_weights;
  void* grad_hidden_bias;
  void* grad_output_weights;
  void* grad_output_bias;
};

}  // namespace fourfold
