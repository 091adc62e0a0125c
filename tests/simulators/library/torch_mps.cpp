// The differences of torch's MPS backend from its CPU: a tensor's data pointer is an MTLBuffer with a byte offset. To
// torch the simulated tensors are CPU tensors, so its own operations first wait for encoded work. simulated.py links
// the __wrap_ functions in front of torch's.
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/c/shim.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "../metal/framework.h"
#include "current_stream.h"

namespace {

// A tensor of this thread's call that the operator expects on the CPU.
thread_local const void* lent = nullptr;

AOTITorchError as_buffer(AtenTensorHandle tensor, char* data, void** result) {
  *result = data;
  if (data == nullptr || data == lent) return AOTI_TORCH_SUCCESS;
  int64_t offset = 0, bytes = 0;
  int32_t dtype = 0;
  size_t size = 0;
  for (AOTITorchError code :
       {aoti_torch_get_storage_offset(tensor, &offset), aoti_torch_get_storage_size(tensor, &bytes),
        aoti_torch_get_dtype(tensor, &dtype)}) {
    if (code != AOTI_TORCH_SUCCESS) return code;
  }
  size = aoti_torch_dtype_element_size(dtype);
  const int64_t behind = offset * static_cast<int64_t>(size);
  *result = static_cast<char*>(gpusim_metal_buffer(data - behind, static_cast<size_t>(bytes))) + behind;
  return AOTI_TORCH_SUCCESS;
}

}  // namespace

extern "C" {

AOTITorchError __real_torch_get_mutable_data_ptr(AtenTensorHandle, void**);
AOTITorchError __wrap_torch_get_mutable_data_ptr(AtenTensorHandle tensor, void** result) {
  void* data = nullptr;
  const AOTITorchError code = __real_torch_get_mutable_data_ptr(tensor, &data);
  return code == AOTI_TORCH_SUCCESS ? as_buffer(tensor, static_cast<char*>(data), result) : code;
}

AOTITorchError __real_torch_get_const_data_ptr(AtenTensorHandle, const void**);
AOTITorchError __wrap_torch_get_const_data_ptr(AtenTensorHandle tensor, const void** result) {
  const void* data = nullptr;
  const AOTITorchError code = __real_torch_get_const_data_ptr(tensor, &data);
  void* buffer = nullptr;
  const AOTITorchError other = code == AOTI_TORCH_SUCCESS
                                   ? as_buffer(tensor, static_cast<char*>(const_cast<void*>(data)), &buffer)
                                   : code;
  *result = buffer;
  return other;
}

AOTITorchError __real_aoti_torch_create_tensor_from_blob(void*, int64_t, const int64_t*, const int64_t*, int64_t,
                                                         int32_t, int32_t, int32_t, AtenTensorHandle*);
AOTITorchError __wrap_aoti_torch_create_tensor_from_blob(void* data, int64_t dim, const int64_t* sizes,
                                                         const int64_t* strides, int64_t offset, int32_t dtype,
                                                         int32_t type, int32_t index, AtenTensorHandle* result) {
  void* memory = data == nullptr ? nullptr : gpusim_metal_memory(data);
  return __real_aoti_torch_create_tensor_from_blob(memory, dim, sizes, strides, offset, dtype, type, index, result);
}

AOTITorchError __real_aoti_torch_empty_strided(int64_t, const int64_t*, const int64_t*, int32_t, int32_t, int32_t,
                                               AtenTensorHandle*);
AOTITorchError __wrap_aoti_torch_empty_strided(int64_t dim, const int64_t* sizes, const int64_t* strides, int32_t dtype,
                                               int32_t, int32_t, AtenTensorHandle* result) {
  return __real_aoti_torch_empty_strided(dim, sizes, strides, dtype, aoti_torch_device_type_cpu(), -1, result);
}

AOTITorchError __real_torch_call_dispatcher(const char*, const char*, StableIValue*, uint64_t);
AOTITorchError __wrap_torch_call_dispatcher(const char* name, const char* overload, StableIValue* stack,
                                            uint64_t version) {
  gpusim_synchronize();
  if (std::strcmp(name, "aten::linear") == 0) {
    int64_t features = 0;
    aoti_torch_get_size(reinterpret_cast<AtenTensorHandle>(stack[0]), 1, &features);
    if (features == 0) {
      std::fputs("gpusim: torch's linear of no features, which ends the process on macOS 15\n", stderr);
      std::abort();
    }
  }
  return __real_torch_call_dispatcher(name, overload, stack, version);
}

AOTITorchError __real_aoti_torch_copy_(AtenTensorHandle, AtenTensorHandle, int32_t);
AOTITorchError __wrap_aoti_torch_copy_(AtenTensorHandle to, AtenTensorHandle from, int32_t non_blocking) {
  gpusim_synchronize();
  return __real_aoti_torch_copy_(to, from, non_blocking);
}

// A tensor that torch keeps on the CPU although the operator's others are on a device; null to end this.
__attribute__((visibility("default"))) void gpusim_metal_lend(const void* memory) { lent = memory; }
}
