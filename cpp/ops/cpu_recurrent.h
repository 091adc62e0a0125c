// The CPU's table of a recurrent layer's kernels.
#pragma once

#include "cpu/recurrent_bf16.h"
#include "ops/recurrent.h"

namespace fourfold {

// bfloat16 is multiplied by pairs.
inline bool computes_on_cpu(ScalarType dtype, const RecurrentShape& shape) {
  return dtype == ScalarType::BFloat16 && shape.input_size % 2 == 0 && shape.hidden_size % 2 == 0 &&
         cpu::Bfloat16Kernel<cpu::RecurrentKernel>::available();
}

template <
    const auto& forward, const auto& backward, const auto& packed_bytes, const auto& pack, const auto& bf16,
    const auto& bf16_backward, const auto& bf16_packed_bytes, const auto& bf16_pack>
inline constexpr RecurrentKernels recurrent_on_cpu{
    computes_on_cpu,
    [](const RecurrentForward& job) { job.layer.kind == Kind::bfloat16 ? bf16(job) : forward(job); },
    [](const RecurrentBackward& job) { job.layer.kind == Kind::bfloat16 ? bf16_backward(job) : backward(job); },
    [](const RecurrentLayer& layer) {
      return layer.kind == Kind::bfloat16 ? bf16_packed_bytes(layer) : packed_bytes(layer);
    },
    [](const RecurrentLayer& layer, void* packed) {
      layer.kind == Kind::bfloat16 ? bf16_pack(layer, packed) : pack(layer, packed);
    },
};

}  // namespace fourfold
