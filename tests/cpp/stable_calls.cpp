// Calls operators of libfourfold through torch's C functions only, which code of any compiler can, and checks the results:
// softshrink, with enough elements for several threads, and mlp. Prints the CPU level in use.
#include <fourfold/library.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

using torch::stable::Tensor;
using torch::stable::detail::from;
using torch::stable::detail::to;

void check(int32_t code, const char* what) {
  if (code != 0) throw std::runtime_error(std::string(what) + " failed");
}

// A tensor that refers to these numbers, which must outlive it.
Tensor tensor(std::vector<float>& numbers, std::array<int64_t, 2> sizes) {
  const std::array<int64_t, 2> strides{sizes[1], 1};
  AtenTensorHandle handle = nullptr;
  check(aoti_torch_create_tensor_from_blob(
            numbers.data(), 2, sizes.data(), strides.data(), 0, aoti_torch_dtype_float32(), aoti_torch_device_type_cpu(), 0, &handle),
      "a tensor");
  return Tensor(handle);
}

template <size_t size>
Tensor call(const char* name, std::array<StableIValue, size> stack) {
  check(torch_call_dispatcher(name, "", stack.data(), TORCH_ABI_VERSION), name);
  return to<Tensor>(stack[0]);
}

std::vector<float> numbers(int64_t count, float step) {
  std::vector<float> made(static_cast<size_t>(count));
  for (size_t k = 0; k < made.size(); ++k) made[k] = std::sin(step * static_cast<float>(k)) / 8;
  return made;
}

void compare(const char* name, const Tensor& got, const std::vector<float>& want) {
  if (got.numel() != static_cast<int64_t>(want.size())) throw std::runtime_error(std::string(name) + " has another size");
  const auto* data = static_cast<const float*>(got.data_ptr());
  for (size_t k = 0; k < want.size(); ++k) {
    if (!(std::abs(data[k] - want[k]) <= 1e-4f)) throw std::runtime_error(std::string(name) + " differs");
  }
}

// x [rows, columns] times the transpose of weights [outputs, columns].
std::vector<float> product(const std::vector<float>& x, const std::vector<float>& weights, size_t rows, size_t columns, size_t outputs) {
  std::vector<float> out(rows * outputs);
  for (size_t r = 0; r < rows; ++r) {
    for (size_t o = 0; o < outputs; ++o) {
      double sum = 0;
      for (size_t c = 0; c < columns; ++c) sum += double(x[r * columns + c]) * weights[o * columns + c];
      out[r * outputs + o] = static_cast<float>(sum);
    }
  }
  return out;
}

void run() {
  if (const char* other = fourfold_other_copy_error()) throw std::runtime_error(other);
  std::vector<float> x = numbers(1000 * 1000, 0.01f);
  std::vector<float> shrunk = x;
  for (float& v : shrunk) v = v > 0.05f ? v - 0.05f : v < -0.05f ? v + 0.05f : 0;
  compare("softshrink", call<2>("fourfold::softshrink", {from(tensor(x, {1000, 1000})), from(0.05)}), shrunk);

  std::vector<float> rows = numbers(9 * 270, 0.1f), first = numbers(250 * 270, 0.02f), second = numbers(10 * 250, 0.03f);
  std::vector<float> hidden = product(rows, first, 9, 270, 250);
  for (float& v : hidden) v = std::max(v, 0.0f);
  const auto none = from(std::optional<Tensor>());
  compare("mlp",
      call<6>("fourfold::mlp", {from(tensor(rows, {9, 270})), from(tensor(first, {250, 270})), none, from(tensor(second, {10, 250})), none, from(false)}),
      product(hidden, second, 9, 250, 10));
}

}  // namespace

int main() {
  try {
    run();
  } catch (const std::exception& error) {
    std::printf("%s\n", error.what());
    return 1;
  }
  std::printf("%s\n", fourfold_cpu_capability());
  return 0;
}
