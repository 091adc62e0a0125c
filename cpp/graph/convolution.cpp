#include "convolution.h"

#include <algorithm>
#include <vector>

#include "values.h"

namespace fourfold::graph {
namespace {

// Of strides, padding and the like, of images, and of channels: products of some of them don't overflow.
constexpr int64_t largest = 1 << 20, largest_image = int64_t{1} << 32, most_channels = 1 << 20;

// From here on torch's kernels are as fast: positions in all (of x, for transposed convolutions), for weights that are
// packed, that are not, and that several products of few channels each share.
constexpr int64_t most_packed = 256, most_packed_in_groups = 128, most_unpacked = 32, most_in_groups = 8;
constexpr int64_t most_of_half = 32;  // of bfloat16 and float16
constexpr int64_t most_groups = 8;
constexpr int64_t most_gathered = 1024;     // elements for each output channel
constexpr int64_t most_gathered_of_few = 1 << 13;  // elements, for any number of output channels
constexpr int64_t most_depthwise = 1 << 18;  // multiply-adds

// One number may stand for all dimensions. Numbers of dimensions that the window doesn't have keep their value.
bool read_sizes(const c10::IValue& given, size_t dims, Sizes& sizes) {
  const auto numbers = given.toIntVector();
  if (numbers.size() != dims && numbers.size() != 1) return false;
  for (size_t d = 0; d < dims; ++d) {
    const int64_t number = numbers[numbers.size() == 1 ? 0 : d];
    if (number < 0 || number > largest) return false;
    sizes.at[most_dims - dims + d] = number;
  }
  return true;
}

Sizes last_sizes(const at::Tensor& tensor, size_t dims) {
  Sizes sizes;
  for (size_t d = 0; d < dims; ++d) sizes.at[most_dims - dims + d] = tensor.size(static_cast<int64_t>(d) + 2);
  return sizes;
}

bool is_readable_as(const at::Tensor& tensor, const at::Tensor& like) {
  return is_plain_tensor(tensor) && tensor.scalar_type() == like.scalar_type() && tensor.is_cpu();
}

}  // namespace

bool read_convolution(const torch::jit::Stack& stack, Convolution& made) {
  if (!stack[0].isTensor() || !stack[1].isTensor()) return false;
  made.x = stack[0].toTensor();
  made.weight = stack[1].toTensor();
  if (stack[2].isTensor()) made.bias = stack[2].toTensor();
  const at::Tensor &x = made.x, &weight = made.weight, &bias = made.bias;
  if (!x.defined() || !weight.defined() || x.dim() != weight.dim() || x.dim() < 3 || x.dim() > 5) return false;
  if (x.scalar_type() != at::kFloat && x.scalar_type() != at::kDouble && !is_half(x.scalar_type())) return false;
  if (!is_readable_as(x, x) || !is_readable_as(weight, x) || !weight.is_contiguous()) return false;
  made.dims = static_cast<size_t>(x.dim()) - 2;
  made.is_transposed = stack[6].toBool();
  // torch's result is channels-last if x is. Of one dimension it depends on the processor and on sizes.
  made.is_last = made.dims == 2 && x.suggest_memory_format() == at::MemoryFormat::ChannelsLast;
  const auto is_last_3d = [&](const at::Tensor& each) { return each.suggest_memory_format() == at::MemoryFormat::ChannelsLast3d; };
  if (made.dims == 3 && (is_last_3d(x) || is_last_3d(weight))) return false;
  const bool has_last_weight = made.dims == 2 && weight.suggest_memory_format() == at::MemoryFormat::ChannelsLast;
  if (has_last_weight || (made.is_last && made.is_transposed)) return false;
  made.groups = stack[8].toInt();
  const size_t dims = made.dims;
  if (!read_sizes(stack[3], dims, made.stride) || !read_sizes(stack[4], dims, made.padding)) return false;
  if (!read_sizes(stack[5], dims, made.dilation) || !read_sizes(stack[7], dims, made.output_padding)) return false;
  made.batch = x.size(0);
  made.channels = x.size(1);
  made.image = last_sizes(x, dims);
  made.kernel = last_sizes(weight, dims);
  if (made.groups < 1 || made.channels % made.groups != 0 || x.numel() == 0 || weight.numel() == 0) return false;
  if (made.batch > largest || made.channels > most_channels || weight.numel() > largest_image) return false;
  const int64_t own = weight.size(0), other = weight.size(1);
  const bool fits = made.is_transposed ? own == made.channels : own % made.groups == 0 && other * made.groups == made.channels;
  if (!fits) return false;
  made.outputs = made.is_transposed ? other * made.groups : own;
  const auto is_bias = [&] { return bias.dim() == 1 && bias.size(0) == made.outputs && bias.is_contiguous(); };
  if (bias.defined() && (!is_readable_as(bias, x) || !is_bias())) return false;
  for (size_t d = 0; d < most_dims; ++d) {
    const int64_t stride = made.stride.at[d], dilation = made.dilation.at[d], padding = made.padding.at[d];
    if (stride < 1 || dilation < 1 || made.image.at[d] > largest_image) return false;
    const int64_t window = dilation * (made.kernel.at[d] - 1) + 1, around = 2 * padding, more = made.output_padding.at[d];
    if (made.is_transposed) {
      if (more >= stride && more >= dilation) return false;
      made.positions.at[d] = (made.image.at[d] - 1) * stride - around + window + more;
    } else {
      if (made.image.at[d] + around < window) return false;
      made.positions.at[d] = (made.image.at[d] + around - window) / stride + 1;
    }
    if (made.positions.at[d] < 1 || made.positions.at[d] > largest_image) return false;
  }
  return true;
}

c10::SmallVector<int64_t, 5> Convolution::result_sizes() const {
  c10::SmallVector<int64_t, 5> made{batch, outputs};
  for (size_t d = most_dims - dims; d < most_dims; ++d) made.push_back(positions.at[d]);
  return made;
}

bool has_few_positions(const Convolution& of, bool is_packed) {
  const Sizes& places_of_rows = of.is_transposed ? of.image : of.positions;
  const auto is_small = [](int64_t size) { return size <= most_packed; };
  if (!is_small(of.batch) || !std::all_of(places_of_rows.at, places_of_rows.at + most_dims, is_small)) return false;
  const int64_t rows = of.batch * (of.is_transposed ? of.image : of.positions).product(), places = of.kernel.product();
  if (is_half(of.x.scalar_type()) && (!is_packed || of.is_transposed || of.is_depthwise() || rows > most_of_half)) return false;
  if (of.is_depthwise()) return rows <= most_packed && rows * of.outputs * places <= most_depthwise;
  const int64_t most = of.groups > 1 ? (is_packed ? most_packed_in_groups : most_in_groups) : is_packed ? most_packed : most_unpacked;
  if (of.groups > most_groups || rows > most) return false;
  return of.is_transposed || rows * of.channels * places <= std::max(most_gathered * of.outputs, most_gathered_of_few);
}

}  // namespace fourfold::graph
