#include "mlp.cuh"

#include <torch/csrc/inductor/aoti_torch/c/shim.h>

#include "elementwise.cuh"
#include "ops/backend.h"
#include "ops/registration.h"

namespace fourfold::gpu {
namespace {

// From this many rows on, a block takes four times as many, to read the weights less often: enough rows to fill a large
// device with the larger blocks too. Not yet measured.
constexpr int64_t many_rows = 1 << 14;
// The backward kernel sums over the whole batch in one block for each 16 rows of a gradient. For larger batches torch's
// products, which split the sum, are assumed to be faster. Not yet measured.
constexpr int64_t fused_backward_batch = 512;

bool fuses_forward(const MlpSizes& sizes) { return fuses(sizes, most_width, true); }

bool fuses_backward(const MlpSizes& sizes) { return fuses(sizes, most_width, sizes.batch <= fused_backward_batch); }

template <typename T, typename Job>
Grid rows_grid(const Job& job, int rows, int64_t first_width) {
  return {(job.batch + rows - 1) / rows, dense_threads, network_bytes<T>(rows, first_width, job.hidden_size)};
}

void forward(const MlpForward& job) {
  visit_floating(job.kind, [&](auto type) {
    using T = typename decltype(type)::type;
    const Grid large = rows_grid<T>(job, 4 * rows_across, job.input_size);
    if (job.batch >= many_rows && large.shared_bytes <= limits(job.place).shared_bytes) {
      launch(job.place, large, mlp_kernel<T, 4>, job);
    } else {
      launch(job.place, rows_grid<T>(job, rows_across, job.input_size), mlp_kernel<T, 1>, job);
    }
  });
}

template <typename T>
void weights_backward(const MlpBackward& job) {
  const WeightsGradient<T> hidden{
      .left = static_cast<const T*>(job.grad_hidden),
      .right = static_cast<const T*>(job.x),
      .height = static_cast<int>(job.hidden_size),
      .width = static_cast<int>(job.input_size),
      .weights = static_cast<T*>(job.grad_hidden_weights),
      .bias = static_cast<T*>(job.grad_hidden_bias),
  };
  const WeightsGradient<T> output{
      .left = static_cast<const T*>(job.grad),
      .right = static_cast<const T*>(job.hidden),
      .height = static_cast<int>(job.output_size),
      .width = static_cast<int>(job.hidden_size),
      .weights = static_cast<T*>(job.grad_output_weights),
      .bias = static_cast<T*>(job.grad_output_bias),
  };
  const auto blocks = [](int64_t height) { return (height + rows_across - 1) / rows_across; };
  const Grid grid{blocks(job.hidden_size) + blocks(job.output_size), dense_threads,
                  dense_depth<Compute<T>> * weights_pitch * static_cast<int64_t>(sizeof(Compute<T>))};
  launch(job.place, grid, mlp_weights_backward_kernel<T>, job.batch, hidden, output);
}

void backward(const MlpBackward& job) {
  visit_floating(job.kind, [&](auto type) {
    using T = typename decltype(type)::type;
    launch(job.place, rows_grid<T>(job, rows_across, job.output_size), mlp_rows_backward_kernel<T>, job);
    if (job.need_weights) weights_backward<T>(job);
  });
}

Tensor hidden_layer(const Tensor& x, const Tensor& weights, const OptionalTensor& bias) {
  // relu(bias + x Wᵀ) by the vendor's product with its epilogue.
  using AddmmActivation = AOTITorchError(
      AtenTensorHandle, AtenTensorHandle, AtenTensorHandle, double, double, int32_t, AtenTensorHandle*);
  static auto* const addmm_activation =
      reinterpret_cast<AddmmActivation*>(in_gpu_torch("aoti_torch_cuda__addmm_activation"));
  if (bias && addmm_activation != nullptr) {
    AtenTensorHandle handle = nullptr;
    const int code = addmm_activation(
        bias->get(), x.get(), transposed(weights).get(), 1.0, 1.0, /*use_gelu=*/0, &handle);
    check_call(code, "addmm with relu");
    return Tensor(handle);
  }
  const Tensor hidden = linear(x, weights, bias);
  activate(Activation::relu, elementwise(hidden, {&hidden}));
  return hidden;
}

void relu_backward(const Tensor& grad, const Tensor& activated) {
  activate_backward(Activation::relu, elementwise(grad, {&grad, &activated}));
}

constexpr MlpKernels mlp_kernels{true,    fuses_forward, fuses_backward, forward,
                                 backward, hidden_layer,  relu_backward};

}  // namespace
}  // namespace fourfold::gpu

FOURFOLD_KERNELS(CUDA, m) {
  m.impl("mlp", FOURFOLD_BOX(mlp, gpu::mlp_kernels));
  m.impl("mlp_backward", FOURFOLD_BOX(mlp_backward, gpu::mlp_kernels));
}
