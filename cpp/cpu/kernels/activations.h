// The activations of hidden layers, on vectors.
#pragma once

#include "cpu/kernels/erf.h"
#include "ops/mlp_layers_job.h"

namespace fourfold::cpu::FOURFOLD_CPU_LEVEL {

namespace formulas {
#include "formulas/activations.h"
}

// Calls f with the formulas of an activation.
template <typename F>
void visit_activation(Activation activation, const F& f) {
  switch (activation) {
    case Activation::relu: return f(formulas::Relu());
    case Activation::tanh: return f(formulas::Tanh());
    case Activation::gelu: return f(formulas::Gelu());
    default: return f(formulas::Silu());
  }
}

}  // namespace fourfold::cpu::FOURFOLD_CPU_LEVEL
