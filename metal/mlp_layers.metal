// The activations of perceptrons' hidden layers, in one pass over layers that torch's product made.
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
