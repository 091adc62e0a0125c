// What the kernels of a run of small layers are given.
#pragma once

#include "ops/kind.h"

namespace fourfold {

enum class Activation { relu, tanh, gelu, silu };

// What the backward of an activation needs: its input z, or its value.
constexpr bool keeps_input(Activation activation) {
  return activation == Activation::gelu || activation == Activation::silu;
}

// What is kept of each hidden layer: those values, or a bit for each that says whether a relu was open, which is all
// that the gradient of x needs.
enum class Keep { nothing, values, bits };

// f(x Wᵀ + b); without f for the network's last layer. Matrices are contiguous and of the type that kind names.
struct DenseLayer {
  int64_t input_size;
  int64_t output_size;
  Input weights;  // (output_size, input_size)
  Input bias;     // (output_size), or null for zero
  bool activated;
  Output kept;           // (rows, output_size) if activated; bits: eight columns to a byte; as the job's `keep` says
  bool need_weights;    // of a backward, and so is what follows
  bool need_bias;
  Output grad_weights;   // out, as weights, written if need_weights
  Output grad_bias;      // out (output_size), if need_bias
};

// A step is the distance from one row to the next: in elements, of kept's bits in bytes.
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
  Output output;   // out (rows, output_size of the last); the last layer's `kept` itself where that is the same
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
  Input grad;  // (rows, output_size of the last layer), contiguous: of the output, after its activation
  Input x;
  int64_t x_step;
  bool need_x;
  Output grad_x;      // out (rows, input_size of the first layer), contiguous, written if need_x
};

}  // namespace fourfold
