// The CPU's kernel tables of recurrent layers.
#pragma once

#include "cpu/kernels/cell.h"
#include "ops/recurrent.h"

namespace fourfold {
namespace cpu {

// bfloat16 products take pairs of values. Rows of h must have an even size, because they are used in place; rows of the
// input are padded.
inline bool computes(ScalarType dtype, const RecurrentShape& shape) {
  return dtype == ScalarType::BFloat16 && shape.hidden_size % 2 == 0 &&
         Bfloat16Kernel<CellKernelsOf>::available();
}

// kernels, in_bfloat16: the functions that FOURFOLD_CPU_CELL declares for a cell.
template <const auto& kernels, const auto& in_bfloat16>
const CellKernels& kernels_for(const RecurrentLayer& layer) {
  return layer.kind == Kind::bfloat16 ? in_bfloat16() : kernels();
}

template <const auto& kernels, const auto& in_bfloat16>
inline constexpr RecurrentKernels recurrent_kernels{
    .computes = computes,
    .forward = [](const RecurrentForward& job) { kernels_for<kernels, in_bfloat16>(job.layer).forward(job); },
    .backward = [](const RecurrentBackward& job) { kernels_for<kernels, in_bfloat16>(job.layer).backward(job); },
    .prepacked_bytes =
        [](const RecurrentLayer& layer) { return kernels_for<kernels, in_bfloat16>(layer).prepacked_bytes(layer); },
    .prepack =
        [](const RecurrentLayer& layer, void* prepacked) {
          kernels_for<kernels, in_bfloat16>(layer).prepack(layer, prepacked);
        },
    .level = [] { return level_choice().name; },
};

}  // namespace cpu

// Each is defined in its operator's file.
extern const RecurrentKernels gru_on_cpu;
extern const RecurrentKernels lltm_on_cpu;
extern const RecurrentKernels lstm_on_cpu;

}  // namespace fourfold
