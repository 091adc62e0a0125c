#include "few_positions.h"

#include <ATen/Functions.h>
#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>

#include "values.h"

namespace fourfold::graph {
namespace {

constexpr size_t most_dims = 3;  // of a window
// Of strides, padding and the like, of images, and of channels: products of some of them don't overflow.
constexpr int64_t largest = 1 << 20, largest_image = int64_t{1} << 32, most_channels = 1 << 20;

// From here on torch's kernels are as fast: positions in all (of x, for transposed convolutions), for weights that are
// packed, that are not, and that several products of few channels each share.
constexpr int64_t most_packed = 256, most_unpacked = 32, most_in_groups = 8;
constexpr int64_t most_groups = 8;
constexpr int64_t most_gathered = 1024;     // elements for each output channel
constexpr int64_t most_depthwise = 1 << 16;  // multiply-adds, which are not vectorised

struct Sizes {
  int64_t at[most_dims] = {1, 1, 1};

  int64_t product() const { return at[0] * at[1] * at[2]; }
};

// The arguments of aten::convolution. Windows of one and two dimensions get leading dimensions of one element.
struct Convolution {
  at::Tensor x, weight, bias;
  Sizes stride, dilation, padding{{0, 0, 0}}, output_padding{{0, 0, 0}};
  bool is_transposed = false;
  int64_t groups = 1;
  size_t dims = 0;
  bool is_last = false;  // channels-last, as the result

  Sizes image, kernel, positions;  // sizes of x, of the window, and of the result
  int64_t batch = 0, channels = 0, outputs = 0;
};

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

bool is_depthwise(const Convolution& of) { return !of.is_transposed && of.groups > 1 && of.weight.size(1) == 1; }

// Leaves all errors to torch's operator: false for arguments that it may reject.
bool read(const torch::jit::Stack& stack, Convolution& made) {
  if (!stack[0].isTensor() || !stack[1].isTensor()) return false;
  made.x = stack[0].toTensor();
  made.weight = stack[1].toTensor();
  if (stack[2].isTensor()) made.bias = stack[2].toTensor();
  const at::Tensor &x = made.x, &weight = made.weight, &bias = made.bias;
  if (!x.defined() || !weight.defined() || x.dim() != weight.dim() || x.dim() < 3 || x.dim() > 5) return false;
  if (x.scalar_type() != at::kFloat && x.scalar_type() != at::kDouble) return false;
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
  if (made.batch > most_packed || made.channels > most_channels || weight.numel() > largest_image) return false;
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
    if ((made.is_transposed ? made.image : made.positions).at[d] > most_packed) return false;
  }
  return true;
}

// Calls f(index) for each index below the sizes, in order.
template <typename F>
void for_each_place(const Sizes& sizes, const F& f) {
  for (int64_t i = 0; i < sizes.at[0]; ++i) {
    for (int64_t j = 0; j < sizes.at[1]; ++j) {
      for (int64_t k = 0; k < sizes.at[2]; ++k) f(Sizes{{i, j, k}});
    }
  }
}

Sizes last_strides(const at::Tensor& tensor, size_t dims) {
  Sizes strides{{0, 0, 0}};
  for (size_t d = 0; d < dims; ++d) strides.at[most_dims - dims + d] = tensor.stride(static_cast<int64_t>(d) + 2);
  return strides;
}

// The places of a window along a dimension that lie within the image, for the window that starts at `start`.
struct Places {
  int64_t begin, end;
};

Places within(int64_t start, int64_t dilation, int64_t window, int64_t size) {
  const int64_t begin = start >= 0 ? 0 : (-start + dilation - 1) / dilation;
  const int64_t end = start >= size ? 0 : std::min(window, (size - start + dilation - 1) / dilation);
  return {std::min(begin, window), std::max(end, std::min(begin, window))};
}

// Writes a row for each position of the result: for each channel the elements under the window, zero outside of x.
template <typename T>
void gather(const Convolution& of, T* rows) {
  const auto* const x = static_cast<const T*>(of.x.const_data_ptr());
  const Sizes step = last_strides(of.x, of.dims);
  const Sizes &kernel = of.kernel, &dilation = of.dilation;
  for (int64_t n = 0; n < of.batch; ++n) {
    for_each_place(of.positions, [&](const Sizes& place) {
      int64_t start[most_dims];
      Places range[most_dims];
      bool is_whole = true;
      for (size_t d = 0; d < most_dims; ++d) {
        start[d] = place.at[d] * of.stride.at[d] - of.padding.at[d];
        range[d] = within(start[d], dilation.at[d], kernel.at[d], of.image.at[d]);
        is_whole = is_whole && range[d].end - range[d].begin == kernel.at[d];
      }
      const int64_t places = kernel.product();
      if (!is_whole) std::memset(rows, 0, static_cast<size_t>(of.channels * places) * sizeof(T));
      const int64_t along = dilation.at[2] * step.at[2];
      for (int64_t c = 0; c < of.channels; ++c, rows += places) {
        const T* const from = x + n * of.x.stride(0) + c * of.x.stride(1);
        for (int64_t i = range[0].begin; i < range[0].end; ++i) {
          for (int64_t j = range[1].begin; j < range[1].end; ++j) {
            const T* const line = from + (start[0] + i * dilation.at[0]) * step.at[0] +
                                  (start[1] + j * dilation.at[1]) * step.at[1] + start[2] * step.at[2];
            T* const to = rows + (i * kernel.at[1] + j) * kernel.at[2];
            for (int64_t k = range[2].begin; k < range[2].end; ++k) to[k] = line[k * along];
          }
        }
      }
    });
  }
}

// rows (batch, positions, columns) -> to (batch, columns, positions).
template <typename T>
void turn(const T* rows, int64_t batch, int64_t positions, int64_t columns, T* to) {
  for (int64_t n = 0; n < batch; ++n, rows += positions * columns, to += positions * columns) {
    for (int64_t c = 0; c < columns; ++c) {
      for (int64_t p = 0; p < positions; ++p) to[c * positions + p] = rows[p * columns + c];
    }
  }
}

template <typename F>
void visit_dtype(const at::Tensor& tensor, const F& f) {
  if (tensor.scalar_type() == at::kFloat) {
    f(float());
  } else {
    f(double());
  }
}

c10::SmallVector<int64_t, 5> result_sizes(const Convolution& of) {
  c10::SmallVector<int64_t, 5> sizes{of.batch, of.outputs};
  for (size_t d = most_dims - of.dims; d < most_dims; ++d) sizes.push_back(of.positions.at[d]);
  return sizes;
}

// out = a b, or bias + a b, by torch.
void multiply(const Matrix& a, const Matrix& b, const at::Tensor* bias, const Matrix& out) {
  const auto tensor = [](const Matrix& matrix) {
    return at::from_blob(matrix.data, matrix.sizes, matrix.strides, at::TensorOptions().dtype(matrix.dtype));
  };
  at::Tensor to = tensor(out);
  if (bias == nullptr) {
    at::mm_out(to, tensor(a), tensor(b));
  } else {
    at::addmm_out(to, *bias, tensor(a), tensor(b));
  }
}

template <typename T>
struct Weights {
  T* data;
  int64_t depth, columns;  // of a group's matrix; the groups follow one another
  int64_t row, column;     // its strides
};

// Each group's part of the rows (count, groups, depth) times its weights -> to (count, groups, columns). bias: for each
// of these columns, or null.
template <typename T>
void multiply_groups(const Convolution& of, T* rows, int64_t count, const Weights<T>& weights, const at::Tensor* bias, T* to, PackedWeights* own) {
  const at::ScalarType dtype = of.x.scalar_type();
  const int64_t depth = weights.depth, columns = weights.columns, groups = of.groups;
  for (int64_t g = 0; g < groups; ++g) {
    const Matrix a{rows + g * depth, dtype, {count, depth}, {groups * depth, 1}};
    const Matrix b{weights.data + g * depth * columns, dtype, {depth, columns}, {weights.row, weights.column}};
    const Matrix out{to + g * columns, dtype, {count, columns}, {groups * columns, 1}};
    if (own != nullptr && groups == 1 && own->multiply(a, b, bias, out)) continue;
    const at::Tensor part = bias != nullptr && groups > 1 ? bias->narrow(0, g * columns, columns) : at::Tensor();
    multiply(a, b, part.defined() ? &part : bias, out);
  }
}

// A channel's own window times its own weights.
template <typename T>
void multiply_depthwise(const Convolution& of, const T* rows, int64_t count, T* to) {
  const auto* const weight = static_cast<const T*>(of.weight.const_data_ptr());
  const auto* const bias = of.bias.defined() ? static_cast<const T*>(of.bias.const_data_ptr()) : nullptr;
  const int64_t places = of.kernel.product(), each = of.outputs / of.groups;
  for (int64_t r = 0; r < count; ++r, rows += of.channels * places) {
    for (int64_t o = 0; o < of.outputs; ++o) {
      const T *const a = rows + o / each * places, *const b = weight + o * places;
      T sum = bias == nullptr ? T(0) : bias[o];
      for (int64_t k = 0; k < places; ++k) sum += a[k] * b[k];
      *to++ = sum;
    }
  }
}

template <typename T>
void convolve(const Convolution& of, T* result, PackedWeights* own) {
  const int64_t positions = of.positions.product(), count = of.batch * positions, places = of.kernel.product();
  const std::unique_ptr<T[]> rows(new T[static_cast<size_t>(count * of.channels * places)]);
  const bool is_turned = positions > 1 && !of.is_last;
  const std::unique_ptr<T[]> turned(is_turned ? new T[static_cast<size_t>(count * of.outputs)] : nullptr);
  T* const to = is_turned ? turned.get() : result;
  gather(of, rows.get());
  if (is_depthwise(of)) {
    multiply_depthwise(of, rows.get(), count, to);
  } else {
    const int64_t depth = of.weight.size(1) * places;
    const Weights<T> weights{static_cast<T*>(const_cast<void*>(of.weight.const_data_ptr())), depth, of.outputs / of.groups, 1, depth};
    multiply_groups(of, rows.get(), count, weights, of.bias.defined() ? &of.bias : nullptr, to, own);
  }
  if (is_turned) turn(to, of.batch, positions, of.outputs, result);
}

// Adds what each element of x contributes, rows (batch, image, outputs, *kernel), to the result.
template <typename T>
void scatter(const Convolution& of, const T* rows, T* result) {
  const int64_t positions = of.positions.product(), places = of.kernel.product();
  const Sizes step{{of.positions.at[1] * of.positions.at[2], of.positions.at[2], 1}};
  for (int64_t n = 0; n < of.batch; ++n, result += of.outputs * positions) {
    for_each_place(of.image, [&](const Sizes& place) {
      int64_t start[most_dims];
      Places range[most_dims];
      for (size_t d = 0; d < most_dims; ++d) {
        start[d] = place.at[d] * of.stride.at[d] - of.padding.at[d];
        range[d] = within(start[d], of.dilation.at[d], of.kernel.at[d], of.positions.at[d]);
      }
      for (int64_t o = 0; o < of.outputs; ++o, rows += places) {
        T* const to = result + o * positions;
        for (int64_t i = range[0].begin; i < range[0].end; ++i) {
          for (int64_t j = range[1].begin; j < range[1].end; ++j) {
            T* const line = to + (start[0] + i * of.dilation.at[0]) * step.at[0] + (start[1] + j * of.dilation.at[1]) * step.at[1];
            const T* const from = rows + (i * of.kernel.at[1] + j) * of.kernel.at[2];
            for (int64_t k = range[2].begin; k < range[2].end; ++k) line[start[2] + k * of.dilation.at[2]] += from[k];
          }
        }
      }
    });
  }
}

template <typename T>
void convolve_transposed(const Convolution& of, T* result, PackedWeights* own) {
  const int64_t image = of.image.product(), count = of.batch * image, positions = of.positions.product();
  const int64_t columns = of.outputs / of.groups * of.kernel.product();
  const std::unique_ptr<T[]> rows(new T[static_cast<size_t>(count * of.channels)]);
  const std::unique_ptr<T[]> product(new T[static_cast<size_t>(count * of.groups * columns)]);
  const Sizes step = last_strides(of.x, of.dims);
  T* to = rows.get();
  for (int64_t n = 0; n < of.batch; ++n) {
    for_each_place(of.image, [&](const Sizes& place) {
      const T* from = static_cast<const T*>(of.x.const_data_ptr()) + n * of.x.stride(0);
      for (size_t d = 0; d < most_dims; ++d) from += place.at[d] * step.at[d];
      for (int64_t c = 0; c < of.channels; ++c) *to++ = from[c * of.x.stride(1)];
    });
  }
  const Weights<T> weights{static_cast<T*>(const_cast<void*>(of.weight.const_data_ptr())), of.channels / of.groups, columns, columns, 1};
  multiply_groups(of, rows.get(), count, weights, nullptr, product.get(), own);
  const auto* const bias = of.bias.defined() ? static_cast<const T*>(of.bias.const_data_ptr()) : nullptr;
  for (int64_t k = 0; k < of.batch * of.outputs; ++k) {
    std::fill_n(result + k * positions, positions, bias == nullptr ? T(0) : bias[k % of.outputs]);
  }
  scatter(of, product.get(), result);
}

// Whether it is faster than torch's kernel.
bool suits(const Convolution& of, bool is_packed) {
  const int64_t rows = of.batch * (of.is_transposed ? of.image : of.positions).product(), places = of.kernel.product();
  if (is_depthwise(of)) return rows <= most_unpacked && rows * of.outputs * places <= most_depthwise;
  if (of.groups > most_groups || rows > (of.groups > 1 ? most_in_groups : is_packed ? most_packed : most_unpacked)) return false;
  return of.is_transposed || rows * of.channels * places <= most_gathered * of.outputs;
}

}  // namespace

bool convolve_few_positions(torch::jit::Stack& stack, PackedWeights* own) {
  Convolution given;
  if (!read(stack, given)) return false;
  const bool is_packed = own != nullptr && given.groups == 1 && own->may_pack(given.weight.numel());
  if (!suits(given, is_packed)) return false;
  const auto format = given.is_last ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous;
  at::Tensor result = at::empty(result_sizes(given), given.x.options(), format);
  visit_dtype(given.x, [&](auto zero) {
    auto* const to = static_cast<decltype(zero)*>(result.mutable_data_ptr());
    given.is_transposed ? convolve_transposed(given, to, own) : convolve(given, to, own);
  });
  stack.clear();
  stack.emplace_back(std::move(result));
  return true;
}

}  // namespace fourfold::graph
