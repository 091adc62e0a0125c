#include "ops/mlp.h"

#include "mlp_layers.h"
#include "ops/backend.h"
#include "ops/registration.h"

namespace fourfold::mps {

extern const Source mlp_shaders;

namespace {

constexpr const char* label = "fourfold::mlp";

// The backward kernel sums over the whole batch in one threadgroup for each 16 rows of a gradient. For larger batches
// torch's products, which split the sum, are assumed to be faster. Not yet measured.
constexpr int64_t fused_backward_batch = 512;

bool fuses_forward(const MlpSizes& sizes) { return fuses(sizes, most_width, true); }

bool fuses_backward(const MlpSizes& sizes) { return fuses(sizes, most_width, sizes.batch <= fused_backward_batch); }

int64_t groups_for(int64_t rows) { return (rows + mlp_rows - 1) / mlp_rows; }

std::string kernel(const char* name, Kind kind) { return std::string(name) + "<" + type_name(kind) + ">"; }

template <typename Job>
MlpJob sizes_of(const Job& job, int has) {
  return {
      .batch = job.batch,
      .input_size = static_cast<int>(job.input_size),
      .hidden_size = static_cast<int>(job.hidden_size),
      .output_size = static_cast<int>(job.output_size),
      .has = has,
  };
}

void forward(const MlpForward& job) {
  if (job.batch == 0) return;
  const int has = (job.hidden_bias == nullptr ? 0 : has_hidden_bias) |
                  (job.output_bias == nullptr ? 0 : has_output_bias) | (job.hidden == nullptr ? 0 : has_hidden);
  encode(label, [&](Encoder& encoder) {
    encoder.use(mlp_shaders, kernel("mlp_forward", job.kind));
    encoder.buffer(0, job.output == nullptr ? Input(job.hidden) : Input(job.output));
    const Input all[] = {job.x, job.hidden_weights, job.hidden_bias, job.output_weights, job.output_bias, job.hidden,
                         job.output};
    for (int k = 0; k < static_cast<int>(std::size(all)); ++k) encoder.buffer(k + 1, all[k]);
    encoder.value(0, sizes_of(job, has));
    encoder.threadgroup_floats(3 * mlp_tile);
    encoder.groups(groups_for(job.batch), 1, mlp_threads);
  });
}

// weights = leftᵀ right, summed over the batch; bias = the sum of left's rows.
void weights_backward(
    Encoder& encoder, const MlpBackward& job, Input left, Input right, int64_t height, int64_t width, Output weights,
    Output bias) {
  if (height == 0) return;
  encoder.buffer(0, bias);
  const Input all[] = {left, right, weights, bias};
  for (int k = 0; k < static_cast<int>(std::size(all)); ++k) encoder.buffer(k + 1, all[k]);
  encoder.value(0, MlpWeightsJob{job.batch, static_cast<int>(height), static_cast<int>(width)});
  encoder.groups(groups_for(height), 1, mlp_threads);
}

void backward(const MlpBackward& job) {
  encode(label, [&](Encoder& encoder) {
    encoder.threadgroup_floats(3 * mlp_tile);
    if (job.batch > 0 && (job.grad_hidden != nullptr || (job.need_x && job.grad_x != nullptr))) {
      encoder.use(mlp_shaders, kernel("mlp_rows_backward", job.kind));
      encoder.buffer(0, job.grad_hidden == nullptr ? Input(job.grad_x) : Input(job.grad_hidden));
      const Input all[] = {job.grad, job.hidden_weights, job.output_weights, job.hidden, job.grad_hidden, job.grad_x};
      for (int k = 0; k < static_cast<int>(std::size(all)); ++k) encoder.buffer(k + 1, all[k]);
      encoder.value(0, sizes_of(job, job.need_x && job.grad_x != nullptr ? has_grad_x : 0));
      encoder.groups(groups_for(job.batch), 1, mlp_threads);
    }
    if (!job.need_weights) return;
    encoder.use(mlp_shaders, kernel("mlp_weights_backward", job.kind));
    weights_backward(encoder, job, job.grad_hidden, job.x, job.hidden_size, job.input_size, job.grad_hidden_weights,
                     job.grad_hidden_bias);
    weights_backward(encoder, job, job.grad, job.hidden, job.output_size, job.hidden_size, job.grad_output_weights,
                     job.grad_output_bias);
  });
}

Tensor hidden_layer(const Tensor& x, const Tensor& weights, const OptionalTensor& bias) {
  const Tensor hidden = linear(x, weights, bias);
  activate(label, Activation::relu, elementwise(hidden, {&hidden}));
  return hidden;
}

void relu_backward(const Tensor& grad, const Tensor& activated) {
  activate_backward(label, Activation::relu, elementwise(grad, {&grad, &activated}));
}

constexpr MlpKernels mlp_kernels{true,     fuses_forward, fuses_backward, forward,
                                 backward, hidden_layer,  relu_backward};

}  // namespace
}  // namespace fourfold::mps

FOURFOLD_KERNELS(MPS, m) {
  m.impl("mlp", FOURFOLD_BOX(mlp, mps::mlp_kernels));
  m.impl("mlp_backward", FOURFOLD_BOX(mlp_backward, mps::mlp_kernels));
}
