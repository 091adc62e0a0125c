// What a GPU build of torch gives the kernels, for the simulated device: a current stream, and the product with relu.
// The device guard stands before torch's own, which would look for a GPU.
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/inductor/aoti_torch/generated/c_shim_cpu.h>

#define FOUND_BY_NAME __attribute__((visibility("default")))

extern "C" {

FOUND_BY_NAME AOTITorchError aoti_torch_get_current_cuda_stream(int32_t, void** stream) {
  *stream = nullptr;
  return AOTI_TORCH_SUCCESS;
}

__attribute__((visibility("hidden"))) AOTITorchError aoti_torch_get_current_device_index(int32_t* index) {
  *index = 0;
  return AOTI_TORCH_SUCCESS;
}

__attribute__((visibility("hidden"))) AOTITorchError aoti_torch_create_device_guard(int32_t, DeviceGuardHandle* guard) {
  *guard = nullptr;
  return AOTI_TORCH_SUCCESS;
}

FOUND_BY_NAME AOTITorchError aoti_torch_cuda__addmm_activation(
    AtenTensorHandle bias, AtenTensorHandle a, AtenTensorHandle b, double beta, double alpha, int32_t use_gelu,
    AtenTensorHandle* result) {
  return aoti_torch_cpu__addmm_activation(bias, a, b, beta, alpha, use_gelu, result);
}
}
