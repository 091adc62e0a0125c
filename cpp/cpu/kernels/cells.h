// The cells of recurrent layers, on vectors.
#pragma once

#include "cpu/kernels/lockstep.h"

namespace fourfold::cpu::FOURFOLD_CPU_LEVEL {

namespace formulas {
#include "formulas/gates.h"
#include "formulas/gru.h"
#include "formulas/lltm.h"
#include "formulas/lstm.h"
}

using formulas::Gru;
using formulas::Lltm;
using formulas::Lstm;
using formulas::Values;

}  // namespace fourfold::cpu::FOURFOLD_CPU_LEVEL
