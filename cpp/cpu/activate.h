// Activations of whole layers.
#pragma once

#include "cpu/elementwise.h"
#include "cpu/kernels/activate.h"

namespace fourfold::cpu {

// z -> its activation.
inline void activate_all(Activation activation, const Elementwise& job) {
  in_parts(job, [&](const auto&... part) { activate(activation, part...); });
}

// (grad, kept) -> the gradient with respect to z. kept: see keeps_input().
inline void differentiate_all(Activation activation, const Elementwise& job) {
  in_parts(job, [&](const auto&... part) { activate_backward(activation, part...); });
}

}  // namespace fourfold::cpu
