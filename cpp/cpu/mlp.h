#pragma once

#include "cpu/level.h"
#include "cpu/strided.h"

namespace fourfold::cpu {

// The whole of a small network in one pass over x. float32 or float64, all contiguous.
struct MlpForward {
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
  void* hidden;                // out (batch, hidden_size): after relu; or null, and it never leaves the cache
  void* output;                // out (batch, output_size)
};

struct MlpBackward {
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

// One pass over a hidden layer that the vendor's product made: in place, its bias is in already.
using ReluKernel = void(Kind kind, int64_t n, void* values);
// grad_hidden in place, from the activated hidden layer.
using ReluBackwardKernel = void(Kind kind, int64_t n, void* grad, const void* activated);
using MlpKernel = void(const MlpForward& job);
using MlpBackwardKernel = void(const MlpBackward& job);

FOURFOLD_CPU_KERNEL(mlp, MlpKernel)
FOURFOLD_CPU_KERNEL(mlp_backward, MlpBackwardKernel)
FOURFOLD_CPU_KERNEL(relu, ReluKernel)
FOURFOLD_CPU_KERNEL(relu_backward, ReluBackwardKernel)

}  // namespace fourfold::cpu
