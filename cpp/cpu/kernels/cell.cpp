// FOURFOLD_CELL is the cell's name, such as lstm, and FOURFOLD_CELL_TYPE its formulas, such as Lstm.
#include "cpu/kernels/cell.h"

#include "cpu/kernels/recurrent_backward.h"
#include "cpu/kernels/recurrent_forward.h"

#define FOURFOLD_JOINED(a, b) a##b
#define FOURFOLD_JOIN(a, b) FOURFOLD_JOINED(a, b)

namespace fourfold::cpu::FOURFOLD_CPU_LEVEL {

namespace {

using Cell = FOURFOLD_CELL_TYPE;

template <typename E>
constexpr CellKernels kernels_of{run_forward<Cell, E>, run_backward<Cell, E>, prepacked_bytes<Cell, E>,
                                 prepack_layer<Cell, E>};

#ifndef FOURFOLD_BFLOAT16
const CellKernels& kernels_for(const RecurrentLayer& layer) {
  return layer.kind == Kind::float64 ? kernels_of<double> : kernels_of<float>;
}

constexpr CellKernels by_kind{
    [](const RecurrentForward& job) { kernels_for(job.layer).forward(job); },
    [](const RecurrentBackward& job) { kernels_for(job.layer).backward(job); },
    [](const RecurrentLayer& layer) { return kernels_for(layer).prepacked_bytes(layer); },
    [](const RecurrentLayer& layer, void* prepacked) { kernels_for(layer).prepack(layer, prepacked); },
};
#endif

}  // namespace

#ifdef FOURFOLD_BFLOAT16
const CellKernels& FOURFOLD_JOIN(FOURFOLD_CELL, _bfloat16_kernels)() { return kernels_of<Bfloat16Pair>; }
#else
const CellKernels& FOURFOLD_JOIN(FOURFOLD_CELL, _kernels)() { return by_kind; }
#endif

}  // namespace fourfold::cpu::FOURFOLD_CPU_LEVEL
