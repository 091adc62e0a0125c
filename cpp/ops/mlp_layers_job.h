// The jobs of kernels for several small layers.
#pragma once

#include "ops/kind.h"

namespace fourfold {

enum class Activation { relu, tanh, gelu, silu };

// Whether the backward of an activation needs its input z; otherwise it needs its value.
constexpr bool keeps_input(Activation activation) {
  return activation == Activation::gelu || activation == Activation::silu;
}

// What is saved of each hidden layer: these values, or, for relu, a bit for each that is set if the value is positive.
// The gradient of x needs no more.
enum class Keep { nothing, values, bits };

// f(x Wᵀ + b); the network's last layer has no f. Matrices are contiguous and of dtype `kind`.
struct DenseLayer {
  int64_t input_size;
  int64_t output_size;
  Input weights;  // (output_size, input_size)
  Input bias;     // (output_size), or null for zero
  bool activated;
  Output kept;           // (rows, output_size) if activated, by the job's `keep`; with bits, eight columns per byte
  bool need_weights;    // this and the members below: backward only
  bool need_bias;
  Output grad_weights;   // out, shaped like weights, if need_weights
  Output grad_bias;      // out (output_size), if need_bias
};

// A step is the distance from one row to the next, in elements (for saved bits, in bytes).
struct LayersForward {
  Place place;
  Kind kind;
  Activation activation;
  Keep keep;
  int64_t rows;
  int64_t count;  // of layers, at least 1
  const DenseLayer* layers;
  int64_t kept_step;
  Input x;  // (rows, input_size of the first layer)
  int64_t x_step;
  Output output;   // out (rows, output_size of the last layer); may alias the last layer's `kept` if both are equal
  int64_t output_step;
};

struct LayersBackward {
  Place place;
  Kind kind;
  Activation activation;
  Keep keep;
  int64_t rows;
  int64_t count;
  const DenseLayer* layers;
  int64_t kept_step;
  Input grad;  // (rows, output_size of the last layer), contiguous: the gradient of the output, after its activation
  Input x;
  int64_t x_step;
  bool need_x;
  Output grad_x;      // out (rows, input_size of the first layer), contiguous, if need_x
};

}  // namespace fourfold
