#include "ops/lltm_cell.h"

#include "ops/backend.h"
#include "ops/registration.h"
#include "step.cuh"

namespace fourfold::gpu {
namespace {

template <typename T>
const T* input(const Tensor& tensor) {
  return static_cast<const T*>(data_of(tensor));
}

template <typename T>
T* output(const Tensor& tensor) {
  return static_cast<T*>(out_data(tensor));
}

template <typename T>
void forward_as(const LltmCellInputs& in, const LltmCellOutputs& out, bool save_for_backward) {
  const Place place = place_of(in.x);
  const int64_t rows = in.h.size(0);
  const int64_t hidden_size = in.h.size(1);
  const int64_t input_size = in.x.size(1);
  CellForward<T, T> job{
      .rows = rows,
      .hidden_size = hidden_size,
      .projection = nullptr,
      .product = nullptr,
      .bias = static_cast<const T*>(data_of(in.bias)),
      .reset = nullptr,
      .state = input<T>(in.c),
      .next_state = output<T>(out.next_c),
      .next_h = output<T>(out.next_h),
      .kept = save_for_backward ? output<T>(out.kept) : nullptr,
      .cells = nullptr,
  };
  if (!vendor_wins(rows * Lltm::gates * hidden_size * (hidden_size + input_size))) {
    const StepFactors<T> factors{
        .h = {.step = input<T>(in.h), .initial = nullptr, .known = rows, .reset = nullptr},
        .x = input<T>(in.x),
        .input_size = input_size,
        .weights = input<T>(in.weights),
        .leading_dim = hidden_size + input_size,
    };
    step<Lltm>(place, factors, job);
    return;
  }
  // Two products with parts of the weights instead of one with [h, x], which would have to be concatenated.
  const Tensor projection = linear(in.x, narrow(in.weights, 1, hidden_size, input_size), in.bias);
  const Tensor product = linear(in.h, narrow(in.weights, 1, 0, hidden_size), std::nullopt);
  job.projection = input<T>(projection);
  job.product = input<T>(product);
  job.bias = nullptr;
  apply_cell<Lltm>(place, job);
}

LltmCellOutputs forward(const LltmCellInputs& in, bool save_for_backward) {
  const Place place = place_of(in.x);
  const ScalarType dtype = in.x.scalar_type();
  const int64_t batch = in.h.size(0);
  const int64_t hidden_size = in.h.size(1);
  const LltmCellOutputs out{
      empty(place, {batch, hidden_size}, dtype), empty(place, {batch, hidden_size}, dtype),
      save_for_backward ? empty(place, {batch, Lltm::kept * hidden_size}, dtype) : nothing(place, dtype)};
  visit_floating(kind_of(dtype), [&](auto type) {
    forward_as<typename decltype(type)::type>(in, out, save_for_backward);
  });
  return out;
}

void backward(const LltmCellBackward& job) {
  visit_floating(job.kind, [&](auto type) {
    using T = typename decltype(type)::type;
    apply_cell_backward<Lltm>(
        job.place, CellBackward<T, T>{
                       .rows = job.batch,
                       .hidden_size = job.hidden_size,
                       .kept = static_cast<const T*>(job.kept),
                       .state = {},  // not needed for the LLTM's gradients
                       .next_state = static_cast<const T*>(job.next_c),
                       .grad_h = static_cast<const T*>(job.grad_h),
                       .grad_output = nullptr,
                       .grad_next_state = static_cast<const T*>(job.grad_next_c),
                       .grad_gates = static_cast<T*>(job.grad_gates),
                       .grad_state = static_cast<T*>(job.grad_c),
                   });
  });
}

constexpr LltmCellKernels lltm_cell_kernels{true, forward, backward, nullptr};

}  // namespace
}  // namespace fourfold::gpu

FOURFOLD_KERNELS(CUDA, m) {
  m.impl("lltm_cell", FOURFOLD_BOX(lltm_cell, gpu::lltm_cell_kernels));
  m.impl("lltm_cell_backward", FOURFOLD_BOX(lltm_cell_backward, gpu::lltm_cell_kernels));
}
