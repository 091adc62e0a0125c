// A recurrent layer's kernels for one cell: compiled from cell.cpp for each cell of CMake's list, at each CPU level. In
// bfloat16 weights, rows and gate gradients are factors of products that are summed up in float, which the cells and
// their states are computed in; input_size and hidden_size are even.
#pragma once

#include "cpu/level.h"
#include "ops/recurrent_job.h"

namespace fourfold::cpu {

struct CellKernels {
  void (*forward)(const RecurrentForward& job);
  void (*backward)(const RecurrentBackward& job);
  // The weights laid out as `forward` multiplies with them.
  int64_t (*prepacked_bytes)(const RecurrentLayer& layer);
  void (*prepack)(const RecurrentLayer& layer, void* prepacked);
};

using CellKernelsOf = const CellKernels&();

}  // namespace fourfold::cpu

// Of the cell of that name: name_kernels() and name_bfloat16_kernels(), of the level that was chosen.
#define FOURFOLD_CPU_CELL(name)                                  \
  FOURFOLD_CPU_KERNEL(name##_kernels, CellKernelsOf)             \
  FOURFOLD_BFLOAT16_KERNEL(name##_bfloat16_kernels, CellKernelsOf)
