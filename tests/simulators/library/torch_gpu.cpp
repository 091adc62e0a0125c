// The functions of a GPU build of torch that the kernels use, for the simulated devices: current streams, the product
// with relu, and tensors' device indices. To torch these are CPU tensors, so its own products first wait for earlier
// launches. simulated.py links the __wrap_ functions in front of torch's.
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/inductor/aoti_torch/generated/c_shim_cpu.h>
#include <torch/csrc/stable/c/shim.h>

#include "current_stream.h"

#define FOUND_BY_NAME __attribute__((visibility("default")))

namespace {

constexpr int32_t cpu = -1;  // the index of torch's CPU device

int32_t device_of(const void* memory) {
  return GPUSIM_CHECKED && gpusim::arena().holds(memory) ? static_cast<int32_t>(gpusim::arena().device_of(memory)) : 0;
}

}  // namespace

extern "C" {

FOUND_BY_NAME AOTITorchError aoti_torch_get_current_cuda_stream(int32_t device, void** stream) {
  *stream = gpusim::current_stream(device);
  return AOTI_TORCH_SUCCESS;
}

__attribute__((visibility("hidden"))) AOTITorchError aoti_torch_get_current_device_index(int32_t* index) {
  *index = 0;
  return AOTI_TORCH_SUCCESS;
}

// torch's guard sets the device of torch's runtime. The kernels' own runtime, which is linked in, has a separate
// current device.
__attribute__((visibility("hidden"))) AOTITorchError aoti_torch_create_device_guard(int32_t, DeviceGuardHandle* guard) {
  *guard = nullptr;
  return AOTI_TORCH_SUCCESS;
}

FOUND_BY_NAME AOTITorchError aoti_torch_cuda__addmm_activation(
    AtenTensorHandle bias, AtenTensorHandle a, AtenTensorHandle b, double beta, double alpha, int32_t use_gelu,
    AtenTensorHandle* result) {
  gpusim_synchronize();
  return aoti_torch_cpu__addmm_activation(bias, a, b, beta, alpha, use_gelu, result);
}

AOTITorchError __real_torch_call_dispatcher(const char*, const char*, StableIValue*, uint64_t);
AOTITorchError __wrap_torch_call_dispatcher(const char* name, const char* overload, StableIValue* stack,
                                            uint64_t version) {
  gpusim_synchronize();
  return __real_torch_call_dispatcher(name, overload, stack, version);
}

AOTITorchError __real_aoti_torch_copy_(AtenTensorHandle, AtenTensorHandle, int32_t);
AOTITorchError __wrap_aoti_torch_copy_(AtenTensorHandle to, AtenTensorHandle from, int32_t non_blocking) {
  gpusim_synchronize();
  return __real_aoti_torch_copy_(to, from, non_blocking);
}

AOTITorchError __wrap_aoti_torch_get_device_index(AtenTensorHandle tensor, int32_t* index) {
  void* memory = nullptr;
  const AOTITorchError code = aoti_torch_get_data_ptr(tensor, &memory);
  *index = device_of(memory);
  return code;
}

AOTITorchError __real_aoti_torch_empty_strided(int64_t, const int64_t*, const int64_t*, int32_t, int32_t, int32_t,
                                               AtenTensorHandle*);
AOTITorchError __wrap_aoti_torch_empty_strided(int64_t dim, const int64_t* sizes, const int64_t* strides, int32_t dtype,
                                               int32_t, int32_t, AtenTensorHandle* result) {
  return __real_aoti_torch_empty_strided(dim, sizes, strides, dtype, aoti_torch_device_type_cpu(), cpu, result);
}

AOTITorchError __real_aoti_torch_create_tensor_from_blob(void*, int64_t, const int64_t*, const int64_t*, int64_t,
                                                         int32_t, int32_t, int32_t, AtenTensorHandle*);
AOTITorchError __wrap_aoti_torch_create_tensor_from_blob(void* data, int64_t dim, const int64_t* sizes,
                                                         const int64_t* strides, int64_t offset, int32_t dtype,
                                                         int32_t type, int32_t, AtenTensorHandle* result) {
  return __real_aoti_torch_create_tensor_from_blob(data, dim, sizes, strides, offset, dtype, type, cpu, result);
}
}
