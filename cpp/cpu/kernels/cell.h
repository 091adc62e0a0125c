// A recurrent layer's kernels for one cell: cell.cpp, compiled for each cell of CMake's list, at each CPU level. With
// bfloat16, the products' operands (weights, rows and gate gradients) are bfloat16; products accumulate in float, and
// cells and states are computed in float. input_size and hidden_size are even.
#pragma once

#include "cpu/level.h"
#include "ops/recurrent_job.h"

namespace fourfold::cpu {

struct CellKernels {
  void (*forward)(const RecurrentForward& job);
  void (*backward)(const RecurrentBackward& job);
  // Packs the weights in the layout of `forward`.
  int64_t (*prepacked_bytes)(const RecurrentLayer& layer);
  void (*prepack)(const RecurrentLayer& layer, void* prepacked);
};

using CellKernelsOf = const CellKernels&();

}  // namespace fourfold::cpu

// Declares name_kernels() and name_bfloat16_kernels() of a cell, which dispatch to the chosen CPU level.
#define FOURFOLD_CPU_CELL(name)                                  \
  FOURFOLD_CPU_KERNEL(name##_kernels, CellKernelsOf)             \
  FOURFOLD_BFLOAT16_KERNEL(name##_bfloat16_kernels, CellKernelsOf)
