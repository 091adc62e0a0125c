// The LLTM's formula as a Cell, for the single step and the time loop.
#pragma once

#include "cpu/math.h"

namespace fourfold::cpu::FOURFOLD_CPU_LEVEL {

namespace formulas {
#include "formulas/lltm_cell.h"
}

struct Lltm {
  static constexpr int gates = 3;
  template <typename T>
  using Gates = formulas::LltmGates<T>;

  template <typename T>
  static formulas::LltmForward<T> forward(Gates<T> gates, T c) {
    return formulas::lltm_forward(gates, c);
  }

  template <typename T>
  static formulas::LltmBackward<T> backward(Gates<T> activated, T next_c, T grad_h, T grad_next_c) {
    return formulas::lltm_backward(activated, next_c, grad_h, grad_next_c);
  }
};

}  // namespace fourfold::cpu::FOURFOLD_CPU_LEVEL
