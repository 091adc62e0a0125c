// Calls softshrink from the library built with this program. It includes only torch headers that compile in a second.
#include <c10/util/Exception.h>
#include <fourfold/library.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <array>
#include <iostream>

namespace stable = torch::stable;

int main() {
  TORCH_CHECK(fourfold_abi_version() == FOURFOLD_ABI_VERSION, "another fourfold: ", fourfold_abi_version());
  std::array<float, 2> values{12.5, 0.25};
  int64_t size = values.size(), stride = 1;
  AtenTensorHandle x = nullptr;
  aoti_torch_create_tensor_from_blob(values.data(), 1, &size, &stride, 0, aoti_torch_dtype_float32(),
                                     aoti_torch_device_type_cpu(), -1, &x);
  std::array<StableIValue, 2> stack{stable::detail::from(stable::Tensor(x)), stable::detail::from(0.5)};
  const int32_t failed = torch_call_dispatcher("fourfold::softshrink", "", stack.data(), TORCH_ABI_VERSION);
  TORCH_CHECK(failed == 0, "fourfold::softshrink failed");
  const auto y = stable::detail::to<stable::Tensor>(stack[0]);
  const float* out = static_cast<const float*>(y.data_ptr());
  std::cout << out[0] << " " << out[1] << "\n" << fourfold_build_facts();
}
