// The CUDA baseline: the extension tutorial's third LLTM. ATen computes the products; one pointwise kernel follows them
// in the forward and one in the backward, with a thread per hidden unit, on the default stream as in the tutorial.

// Only the parts of torch/extension.h that are used here: nvcc compiles it in half the time.
#include <ATen/ATen.h>
#include <ATen/Dispatch.h>
#include <c10/cuda/CUDAException.h>
#include <torch/csrc/utils/pybind.h>

#include <cstdint>
#include <vector>

namespace {

constexpr int threads = 1024;

dim3 blocks_for(const at::Tensor& c) {
  return dim3(static_cast<unsigned>((c.size(1) + threads - 1) / threads), static_cast<unsigned>(c.size(0)));
}

template <typename T>
__device__ T sigmoid(T x) {
  return T(1) / (T(1) + exp(-x));
}

template <typename T>
__device__ T elu(T x) {
  return x > T(0) ? x : exp(x) - T(1);
}

// All tensors are contiguous. gates (B, 3H), in the order input, output, candidate; everything else (B, H).
template <typename T>
__global__ void forward_kernel(
    const T* gates, const T* c, T* new_h, T* new_c, T* input_gate, T* output_gate, T* candidate, int64_t hidden_size) {
  const int64_t unit = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (unit >= hidden_size) return;
  const int64_t row = blockIdx.y;
  const int64_t at = row * hidden_size + unit;
  const T* gate = gates + row * 3 * hidden_size + unit;
  input_gate[at] = sigmoid(gate[0]);
  output_gate[at] = sigmoid(gate[hidden_size]);
  candidate[at] = elu(gate[2 * hidden_size]);
  new_c[at] = c[at] + candidate[at] * input_gate[at];
  new_h[at] = tanh(new_c[at]) * output_gate[at];
}

template <typename T>
__global__ void backward_kernel(
    const T* grad_h, const T* grad_new_c, const T* new_c, const T* input_gate, const T* output_gate,
    const T* candidate, T* grad_c, T* grad_gates, int64_t hidden_size) {
  const int64_t unit = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (unit >= hidden_size) return;
  const int64_t row = blockIdx.y;
  const int64_t at = row * hidden_size + unit;
  T* grad_gate = grad_gates + row * 3 * hidden_size + unit;
  const T i = input_gate[at];
  const T o = output_gate[at];
  const T g = candidate[at];
  const T tanh_c = tanh(new_c[at]);
  const T grad = grad_new_c[at] + grad_h[at] * o * (T(1) - tanh_c * tanh_c);
  grad_c[at] = grad;
  grad_gate[0] = grad * g * i * (T(1) - i);
  grad_gate[hidden_size] = grad_h[at] * tanh_c * o * (T(1) - o);
  // elu's derivative is 1 above zero and its value plus one below.
  grad_gate[2 * hidden_size] = grad * i * (g > T(0) ? T(1) : g + T(1));
}

}  // namespace

// x (B, I), h and c (B, H), weights (3H, H+I), bias (3H): returns the next h and c, then the saved tensors for
// backward.
std::vector<at::Tensor> lltm_forward(
    const at::Tensor& x, const at::Tensor& h, const at::Tensor& c, const at::Tensor& weights, const at::Tensor& bias) {
  auto X = at::cat({h, x}, 1);
  auto gates = at::addmm(bias, X, weights.t());
  auto old_c = c.contiguous();
  auto new_h = at::zeros_like(old_c);
  auto new_c = at::zeros_like(old_c);
  auto input_gate = at::zeros_like(old_c);
  auto output_gate = at::zeros_like(old_c);
  auto candidate = at::zeros_like(old_c);
  AT_DISPATCH_FLOATING_TYPES(gates.scalar_type(), "lltm_forward", [&] {
    forward_kernel<scalar_t><<<blocks_for(c), threads>>>(
        gates.const_data_ptr<scalar_t>(), old_c.const_data_ptr<scalar_t>(), new_h.mutable_data_ptr<scalar_t>(),
        new_c.mutable_data_ptr<scalar_t>(), input_gate.mutable_data_ptr<scalar_t>(),
        output_gate.mutable_data_ptr<scalar_t>(), candidate.mutable_data_ptr<scalar_t>(), c.size(1));
  });
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return {new_h, new_c, X, input_gate, output_gate, candidate, new_c};
}

// The gradients of x, h, c, weights and bias.
std::vector<at::Tensor> lltm_backward(
    const at::Tensor& grad_h,
    const at::Tensor& grad_new_c,
    const at::Tensor& weights,
    const at::Tensor& X,
    const at::Tensor& input_gate,
    const at::Tensor& output_gate,
    const at::Tensor& candidate,
    const at::Tensor& new_c) {
  const auto hidden_size = new_c.size(1);
  auto grad_c = at::zeros_like(new_c);
  auto grad_gates = at::zeros({new_c.size(0), 3 * hidden_size}, new_c.options());
  AT_DISPATCH_FLOATING_TYPES(new_c.scalar_type(), "lltm_backward", [&] {
    backward_kernel<scalar_t><<<blocks_for(new_c), threads>>>(
        grad_h.const_data_ptr<scalar_t>(), grad_new_c.const_data_ptr<scalar_t>(), new_c.const_data_ptr<scalar_t>(),
        input_gate.const_data_ptr<scalar_t>(), output_gate.const_data_ptr<scalar_t>(),
        candidate.const_data_ptr<scalar_t>(), grad_c.mutable_data_ptr<scalar_t>(),
        grad_gates.mutable_data_ptr<scalar_t>(), hidden_size);
  });
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  auto grad_X = grad_gates.mm(weights);
  return {
      grad_X.slice(1, hidden_size), grad_X.slice(1, 0, hidden_size), grad_c, grad_gates.t().mm(X), grad_gates.sum(0)};
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("lltm_forward", &lltm_forward);
  m.def("lltm_backward", &lltm_backward);
}
