#include "few_positions.h"

#include <ATen/Functions.h>
#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "block_convolution.h"
#include "convolution.h"
#include "depthwise.h"

namespace fourfold::graph {
namespace {

// The places of a window along a dimension that lie within the image, for the window that starts at `start`.
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
  const int64_t images = of.x.stride(0), lines = of.x.stride(1);
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
        const T* const from = x + n * images + c * lines;
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
    fourfold_transpose_tile(sizeof(T), rows, columns, to, positions, columns, positions);
  }
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

// Rows with their strides.
template <typename T>
struct RowsOf {
  T* data;
  int64_t row, column;
};

template <typename T>
struct Weights {
  T* data;
  int64_t depth, columns;  // of a group's matrix; the groups follow one another
  int64_t row, column;     // its strides
};

// Each group's part of the rows (count, groups, depth) times its weights -> to (count, groups, columns). bias: for each
// of these columns, or null.
template <typename T>
void multiply_groups(const Convolution& of, const RowsOf<T>& rows, int64_t count, const Weights<T>& weights, const at::Tensor* bias, T* to, PackedWeights* own) {
  const at::ScalarType dtype = of.x.scalar_type();
  const int64_t depth = weights.depth, columns = weights.columns, groups = of.groups;
  for (int64_t g = 0; g < groups; ++g) {
    const Matrix a{rows.data + g * depth * rows.column, dtype, {count, depth}, {rows.row, rows.column}};
    const Matrix b{weights.data + g * depth * columns, dtype, {depth, columns}, {weights.row, weights.column}};
    const Matrix out{to + g * columns, dtype, {count, columns}, {groups * columns, 1}};
    const at::Tensor part = bias != nullptr && groups > 1 ? bias->narrow(0, g * columns, columns) : at::Tensor();
    const at::Tensor* const start = part.defined() ? &part : bias;
    const bool is_packed = own != nullptr && own->may_pack(groups * depth * columns);
    if (!is_packed || !own->of_group(g).multiply(a, b, start, out)) multiply(a, b, start, out);
  }
}

constexpr int64_t most_prepared = 1 << 20;  // elements
constexpr int32_t most_by_element = 8;      // of which a call of memmove takes longer

}  // namespace

// Windows of one element: x is the rows' matrix itself. The step from row to row, or 0.
int64_t step_of_elements(const Convolution& of) {
  const auto are = [](const Sizes& sizes, int64_t number) { return sizes.at[0] == number && sizes.at[1] == number && sizes.at[2] == number; };
  if (!are(of.kernel, 1) || !are(of.stride, 1) || !are(of.padding, 0)) return 0;
  if (of.positions.product() == 1) return of.x.stride(0);
  const Sizes steps = last_strides(of.x, of.dims), &sizes = of.image;
  const bool are_lines = of.dims < 2 || steps.at[1] == steps.at[2] * sizes.at[2];
  const bool are_planes = of.dims < 3 || steps.at[0] == steps.at[1] * sizes.at[1];
  return of.batch == 1 && are_lines && are_planes ? steps.at[2] : 0;
}

// Elements of the rows that lie in x one after the other.
struct Run {
  int32_t to, from, count;
};

// Memory for the rows, which later calls use again.
template <typename T>
class Rows {
 public:
  explicit Rows(const Convolution& of)
      : count_(of.batch * of.positions.product()),
        elements_(count_ * of.channels * of.kernel.product()),
        is_turned_(count_ > of.batch && !of.is_last) {}

  bool is_turned() const { return is_turned_; }
  int64_t count() const { return count_; }
  T* turned(const Convolution& of) { return memory_of(turned_, count_ * of.outputs); }

  // Where elements come from follows from the layouts: finds it once.
  void prepare(const Convolution& of) {
    Convolution places = of;
    int64_t extent = 1;
    for (int64_t d = 0; d < of.x.dim(); ++d) extent += (of.x.size(d) - 1) * of.x.stride(d);
    if (extent > most_prepared || elements_ > most_prepared || step_of_elements(of) > 0) return;
    places.x = at::arange(1, extent + 1, at::kInt).as_strided(of.x.sizes(), of.x.strides());
    std::vector<int32_t> found(static_cast<size_t>(elements_));
    fourfold::graph::gather(places, found.data());
    for (int32_t k = 0; k < static_cast<int32_t>(elements_); ++k) {
      const int32_t from = found[static_cast<size_t>(k)] - 1;
      if (from < 0) continue;
      const bool goes_on = !runs_.empty() && k == runs_.back().to + runs_.back().count && from == runs_.back().from + runs_.back().count;
      goes_on ? static_cast<void>(++runs_.back().count) : runs_.push_back({k, from, 1});
    }
    std::fill_n(memory_of(rows_, elements_), elements_, T(0));
  }

  RowsOf<T> gather(const Convolution& of) {
    auto* const x = static_cast<T*>(const_cast<void*>(of.x.const_data_ptr()));
    const int64_t depth = elements_ / count_;
    if (const int64_t step = step_of_elements(of); step > 0) return {x, step, of.x.stride(1)};
    if (runs_.size() == 1 && runs_[0].count == elements_) return {x + runs_[0].from, depth, 1};
    T* const rows = memory_of(rows_, elements_);
    if (runs_.empty()) {
      fourfold::graph::gather(of, rows);
    } else {
      for (const Run& run : runs_) {
        if (run.count > most_by_element) {
          std::copy_n(x + run.from, run.count, rows + run.to);
        } else {
          for (int32_t k = 0; k < run.count; ++k) rows[run.to + k] = x[run.from + k];
        }
      }
    }
    return {rows, depth, 1};
  }

 private:
  static T* memory_of(std::unique_ptr<T[]>& memory, int64_t elements) {
    if (memory == nullptr) memory.reset(new T[static_cast<size_t>(elements)]);
    return memory.get();
  }

  int64_t count_, elements_;
  bool is_turned_;
  std::unique_ptr<T[]> rows_, turned_;
  std::vector<Run> runs_;
};

namespace {

template <typename T>
void convolve(const Convolution& of, T* result, PackedWeights* own, Rows<T>& rows) {
  const int64_t positions = of.positions.product(), depth = of.weight.size(1) * of.kernel.product();
  T* const to = rows.is_turned() ? rows.turned(of) : result;
  const Weights<T> weights{static_cast<T*>(const_cast<void*>(of.weight.const_data_ptr())), depth, of.outputs / of.groups, 1, depth};
  multiply_groups(of, rows.gather(of), rows.count(), weights, of.bias.defined() ? &of.bias : nullptr, to, own);
  if (rows.is_turned()) turn(to, of.batch, positions, of.outputs, result);
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
  multiply_groups(of, RowsOf<T>{rows.get(), of.channels, 1}, count, weights, nullptr, product.get(), own);
  const auto* const bias = of.bias.defined() ? static_cast<const T*>(of.bias.const_data_ptr()) : nullptr;
  for (int64_t k = 0; k < of.batch * of.outputs; ++k) {
    std::fill_n(result + k * positions, positions, bias == nullptr ? T(0) : bias[k % of.outputs]);
  }
  scatter(of, product.get(), result);
}

bool may_pack(const Convolution& given, const PackedWeights* own) { return own != nullptr && own->may_pack(given.weight.numel()); }

template <typename T>
void convolve_in_one_way(const Convolution& of, T* result, PackedWeights* own, Rows<T>& rows) {
  if constexpr (sizeof(T) > sizeof(uint16_t)) {
    if (of.is_depthwise()) return convolve_depthwise(of, result);
    if (of.is_transposed) return convolve_transposed(of, result, own);
  }
  convolve(of, result, own, rows);
}

at::Tensor new_result(const Convolution& of) {
  const auto format = of.is_last ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous;
  return at::empty(of.result_sizes(), of.x.options(), format);
}

}  // namespace

bool convolve_by_products(torch::jit::Stack& stack, PackedWeights* own, const at::Tensor* into) {
  Convolution given;
  if (!read_convolution(stack, given)) return false;
  const bool is_packed = may_pack(given, own), is_small = has_few_positions(given, is_packed);
  const std::optional<Convolution> blocks = is_small ? std::nullopt : in_blocks(given, is_packed);
  if (!is_small && !blocks.has_value()) return false;
  at::Tensor result = into == nullptr ? new_result(given) : *into;
  if (is_small) {
    visit_dtype(given.x, [&](auto zero) {
      using T = decltype(zero);
      Rows<T> rows(given);
      convolve_in_one_way(given, static_cast<T*>(result.mutable_data_ptr()), own, rows);
    });
  } else if (!convolve_in_blocks(*blocks, own, result)) {
    return false;
  }
  stack.clear();
  stack.emplace_back(std::move(result));
  return true;
}

struct FewPositions::Made {
  Convolution of;
  PackedWeights* own;
  Rows<float> floats;
  Rows<double> doubles;
  Rows<uint16_t> halves;

  // Calls f with the memory of a dtype's rows.
  template <typename F>
  void visit(at::ScalarType dtype, const F& f) {
    if (is_half(dtype)) return f(halves, uint16_t());
    dtype == at::kFloat ? f(floats, float()) : f(doubles, double());
  }
};

FewPositions::FewPositions(std::unique_ptr<Made> made) : made_(std::move(made)) {}
FewPositions::~FewPositions() = default;

std::unique_ptr<FewPositions> FewPositions::of(const torch::jit::Stack& stack, PackedWeights* own) {
  Convolution given;
  if (!read_convolution(stack, given) || !has_few_positions(given, may_pack(given, own))) return nullptr;
  auto made = std::make_unique<Made>(Made{given, own, Rows<float>(given), Rows<double>(given), Rows<uint16_t>(given)});
  if (!given.is_transposed && !given.is_depthwise()) made->visit(given.x.scalar_type(), [&](auto& rows, auto) { rows.prepare(given); });
  for (at::Tensor* const each : {&made->of.x, &made->of.weight, &made->of.bias}) each->reset();
  return std::unique_ptr<FewPositions>(new FewPositions(std::move(made)));
}

void FewPositions::run(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, const at::Tensor& result) {
  Convolution& of = made_->of;
  of.x = x, of.weight = weight, of.bias = bias;
  made_->visit(x.scalar_type(), [&](auto& rows, auto zero) {
    convolve_in_one_way(of, static_cast<decltype(zero)*>(result.mutable_data_ptr()), made_->own, rows);
  });
  for (at::Tensor* const each : {&of.x, &of.weight, &of.bias}) each->reset();
}

}  // namespace fourfold::graph
