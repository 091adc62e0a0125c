// A multi-layer network's arguments, checked and prepared for the kernels.
#pragma once

#include "ops/mlp_layers.h"

namespace fourfold {

struct Network {
  Activation activation;
  Place place;
  Kind kind;
  ScalarType dtype;            // the compute dtype, also of x and the weights
  int64_t rows;                // the product of x's leading dimensions
  std::vector<int64_t> sizes;  // input_size, then each layer's output_size
  Tensor x;                    // (rows, input_size), contiguous
  std::vector<Tensor> weights;
  std::vector<OptionalTensor> biases;  // (output_size) or (1, output_size)

  int64_t count() const { return static_cast<int64_t>(weights.size()); }
  // Whether layer l has an activation after it: all but the last.
  bool hidden(int64_t l) const { return l + 1 < count(); }
};

// Throws an error for invalid arguments.
Network network_of(
    const char* op, const Tensor& x, const std::vector<Tensor>& weights, const std::vector<OptionalTensor>& biases,
    StringHandle activation, bool low_precision);

// The size of a row of `kept`: the concatenated values of the hidden layers, or their bits; each layer begins at a
// byte.
int64_t kept_width(const Network& net, Keep keep);

struct Kept {
  // `memory` (rows, kept_width) is contiguous and outlives this.
  Kept(const Network& net, Keep keep, const Tensor& memory);

  Output at(int64_t l) const { return memory.behind(offsets[l] * element_size); }
  // A hidden layer's values, (rows, size) in that memory.
  Tensor view(const Network& net, int64_t l) const;

  Keep keep;
  int64_t step;
  int64_t element_size;
  Output memory;
  std::vector<int64_t> offsets;  // of each hidden layer in a row
};

// Which gradients are needed. The mask has x, then each layer's weights, then each layer's bias.
class Needs {
 public:
  Needs(const char* op, const Network& net, const std::vector<bool>& output_mask);

  bool x() const { return needed_[0]; }
  bool weights(int64_t l) const { return needed_[static_cast<size_t>(1 + l)]; }
  bool bias(int64_t l) const {
    return needed_[static_cast<size_t>(1 + count_ + l)] && has_bias_[static_cast<size_t>(l)];
  }
  bool any_weights() const;
  // The lowest layer that needs a gradient; -1 for x, count for none.
  int64_t lowest() const;

 private:
  int64_t count_;
  const std::vector<bool>& needed_;
  std::vector<bool> has_bias_;
};

void check_backward(
    const char* op, const Network& net, const Tensor& x, const Tensor& grad, const Tensor& kept, const Needs& needs,
    bool keeps_bits);

}  // namespace fourfold
