// The activations of an MLP's hidden layers, each one pass over the result of torch's product.
#include "elementwise_kernels.h"

namespace fourfold {
using numbers::erf;

#include "formulas/activations.h"

template <typename Activation>
struct Activate {
  float forward(float z) const { return Activation::value(z); }
  float backward(float grad, float kept) const { return Activation::backward(grad, kept); }
};

}  // namespace fourfold
