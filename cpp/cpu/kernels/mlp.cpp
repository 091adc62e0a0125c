#include "cpu/kernels/mlp.h"

#include "cpu/kernels/mlp_layers.h"

namespace fourfold::cpu::FOURFOLD_CPU_LEVEL {

// A network with one hidden relu layer is run as two layers.
void mlp(const MlpForward& job) {
  const DenseLayer layers[] = {
      {job.input_size, job.hidden_size, job.hidden_weights, job.hidden_bias, true, job.hidden, false, false, nullptr,
       nullptr},
      {job.hidden_size, job.output_size, job.output_weights, job.output_bias, false, nullptr, false, false, nullptr,
       nullptr},
  };
  mlp_layers({
      .place = job.place,
      .kind = job.kind,
      .activation = Activation::relu,
      .keep = job.keep ? Keep::values : Keep::nothing,
      .rows = job.batch,
      .count = 2,
      .layers = layers,
      .kept_step = job.hidden_size,
      .x = job.x,
      .x_step = job.input_size,
      .output = job.output,
      .output_step = job.output_size,
  });
}

void mlp_backward(const MlpBackward& job) {
  const bool need = job.need_weights;
  const Output hidden{const_cast<void*>(job.hidden.base), job.hidden.offset};  // the backward only reads it
  const DenseLayer layers[] = {
      {job.input_size, job.hidden_size, job.hidden_weights, nullptr, true, hidden, need, need,
       job.grad_hidden_weights, job.grad_hidden_bias},
      {job.hidden_size, job.output_size, job.output_weights, nullptr, false, nullptr, need, need,
       job.grad_output_weights, job.grad_output_bias},
  };
  mlp_layers_backward({
      .place = job.place,
      .kind = job.kind,
      .activation = Activation::relu,
      .keep = Keep::values,
      .rows = job.batch,
      .count = 2,
      .layers = layers,
      .kept_step = job.hidden_size,
      .grad = job.grad,
      .x = job.x,
      .x_step = job.input_size,
      .need_x = job.need_x,
      .grad_x = job.grad_x,
  });
}

}  // namespace fourfold::cpu::FOURFOLD_CPU_LEVEL
