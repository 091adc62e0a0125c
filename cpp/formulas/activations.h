// Activations of hidden layers. Each struct has value(z), and backward(grad, kept), the gradient with respect to z,
// where `kept` is z or value(z), see keeps_input (ops/mlp_layers_job.h). Needs exp, tanh, erf, sigmoid and select for
// T.

// NaN propagates, as in torch. The gradient is zero where the value is zero.
struct Relu {
  template <typename T>
  FOURFOLD_FN static T value(T z) { return select(z <= T(0), T(0), z); }
  template <typename T>
  FOURFOLD_FN static T backward(T grad, T kept) { return select(kept <= T(0), T(0), grad); }
};

struct Tanh {
  template <typename T>
  FOURFOLD_FN static T value(T z) { return tanh(z); }
  template <typename T>
  FOURFOLD_FN static T backward(T grad, T kept) { return grad * (T(1) - kept * kept); }
};

// z Φ(z), where Φ is the normal distribution function: torch's gelu without approximation.
struct Gelu {
  template <typename T>
  FOURFOLD_FN static T normal(T z) { return T(0.5) * (T(1) + erf(z * T(0.70710678118654752440))); }
  template <typename T>
  FOURFOLD_FN static T value(T z) { return z * normal(z); }
  template <typename T>
  FOURFOLD_FN static T backward(T grad, T kept) {
    const T density = T(0.39894228040143267794) * exp(T(-0.5) * kept * kept);
    return grad * (normal(kept) + kept * density);
  }
};

struct Silu {
  template <typename T>
  FOURFOLD_FN static T value(T z) { return z * sigmoid(z); }
  template <typename T>
  FOURFOLD_FN static T backward(T grad, T kept) {
    const T s = sigmoid(kept);
    return grad * (s * (T(1) + kept * (T(1) - s)));
  }
};
