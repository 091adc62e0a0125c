#include "block_convolution.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "wide_product.h"

namespace fourfold::graph {
namespace {

constexpr int64_t bytes_of_block = 128 * 1024;  // of gathered rows: with their products, half of many cores' L2 cache
constexpr int64_t most_rows_of_block = 128, fewest_rows_of_block = 24;

// Rows of a block, which begin with the row `first`: row r is position r % positions of image r / positions.
struct RowBlock {
  int64_t first, count;
};

// Where torch's kernels are slow: images of few positions, long windows, and windows of one element on processors whose
// widest vectors MKL doesn't use.
constexpr int64_t fewest_of_packed = 256, fewest_of_unpacked = 1024;  // positions of all images
constexpr int64_t most_of_image = 8, long_window = 128, fewest_channels = 64;

constexpr int64_t side = 16;  // of squares that are transposed: a cache line of floats

// Memory of one thread for the blocks that it computes.
template <typename T>
class BlockWorker {
 public:
  BlockWorker(const Convolution& of, const PackedMatrix& weights, T* result, int64_t most_rows)
      : of_(of),
        weights_(weights),
        result_(result),
        positions_(of.positions.at[2]),
        places_(of.kernel.at[2]),
        depth_(of.channels * places_),
        is_padded_(of.padding.at[2] > 0 || of.x.stride(-1) != 1),
        has_images_(positions_ <= most_rows),
        lines_(is_padded_ ? new T[static_cast<size_t>(of.channels * span_of(std::min(positions_, most_rows)))]() : nullptr),
        rows_(new T[static_cast<size_t>(most_rows * depth_)]),
        products_(positions_ > 1 ? new T[static_cast<size_t>(most_rows * of.outputs)] : nullptr) {}

  void run(const RowBlock& block) {
    const int64_t outputs = of_.outputs;
    for_images(block, [&](int64_t image, int64_t position, int64_t count, int64_t row) {
      gather(image, position, count, rows_.get() + row * depth_);
    });
    T* const to = positions_ > 1 ? products_.get() : result_ + block.first * outputs;
    const at::ScalarType dtype = of_.x.scalar_type();
    const Matrix a{rows_.get(), dtype, {block.count, depth_}, {depth_, 1}}, out{to, dtype, {block.count, outputs}, {outputs, 1}};
    weights_.multiply(a, of_.bias.defined() ? &of_.bias : nullptr, out, /*in_parallel=*/false);
    if (positions_ == 1) return;
    for_images(block, [&](int64_t image, int64_t position, int64_t count, int64_t row) {
      turn(products_.get() + row * outputs, count, result_ + image * outputs * positions_ + position);
    });
  }

 private:
  // Calls f(image, first position, number of positions, first row within the block).
  template <typename F>
  void for_images(const RowBlock& block, const F& f) const {
    for (int64_t row = 0; row < block.count;) {
      const int64_t image = (block.first + row) / positions_, position = (block.first + row) % positions_;
      const int64_t count = std::min(positions_ - position, block.count - row);
      f(image, position, count, row);
      row += count;
    }
  }

  // The number of elements of a channel under the windows at so many positions.
  int64_t span_of(int64_t count) const { return (count - 1) * of_.stride.at[2] + of_.dilation.at[2] * (places_ - 1) + 1; }

  // Copies the elements under the windows at `count` positions of an image, for each channel one window after the other.
  void gather(int64_t image, int64_t position, int64_t count, T* rows) {
    const T* from = static_cast<const T*>(of_.x.const_data_ptr()) + image * of_.x.stride(0);
    int64_t line = of_.x.stride(1);
    const int64_t start = position * of_.stride.at[2] - of_.padding.at[2];
    if (is_padded_) {
      line = span_of(count);
      pad(from, start, line);
      from = lines_.get();
    } else {
      from += start;
    }
    if (of_.dilation.at[2] != 1) return copy_windows<0>(from, line, count, rows);
    switch (places_) {
      case 1:
        if (of_.stride.at[2] == 1) return fourfold_transpose_tile(sizeof(T), from, line, rows, depth_, count, of_.channels);
        return copy_windows<1>(from, line, count, rows);
      case 3: return copy_windows<3>(from, line, count, rows);
      case 5: return copy_windows<5>(from, line, count, rows);
      default: return copy_windows<0>(from, line, count, rows);
    }
  }

  // known: the number of places, if they are neighbours, or 0.
  template <int64_t known>
  void copy_windows(const T* from, int64_t line, int64_t count, T* rows) const {
    const int64_t places = known > 0 ? known : places_, dilation = known > 0 ? 1 : of_.dilation.at[2], stride = of_.stride.at[2];
    for (int64_t first = 0; first < of_.channels; first += side) {
      const int64_t last = std::min(first + side, of_.channels);
      for (int64_t p = 0; p < count; ++p) {
        const T* window = from + first * line + p * stride;
        T* to = rows + p * depth_ + first * places;
        for (int64_t c = first; c < last; ++c, window += line, to += places) {
          if (dilation == 1) {
            std::memcpy(to, window, static_cast<size_t>(places) * sizeof(T));  // two moves for three places
          } else {
            for (int64_t k = 0; k < places; ++k) to[k] = window[k * dilation];
          }
        }
      }
    }
  }

  // Copies `size` elements of each channel from the place `start` on, zeros for those outside of the image.
  void pad(const T* from, int64_t start, int64_t size) {
    const int64_t begin = std::clamp<int64_t>(-start, 0, size), end = std::clamp(of_.image.at[2] - start, begin, size), step = of_.x.stride(-1);
    T* to = lines_.get();
    const int64_t line = of_.x.stride(1);
    for (int64_t c = 0; c < of_.channels; ++c, from += line, to += size) {
      if (!has_images_) std::fill(to, to + begin, T(0));
      for (int64_t k = begin; k < end; ++k) to[k] = from[(start + k) * step];
      if (!has_images_) std::fill(to + end, to + size, T(0));
    }
  }

  // Writes products (count, outputs) to the result (outputs, positions).
  void turn(const T* from, int64_t count, T* to) const {
    fourfold_transpose_tile(sizeof(T), from, of_.outputs, to, positions_, of_.outputs, count);
  }

  const Convolution& of_;
  const PackedMatrix& weights_;
  T* const result_;
  const int64_t positions_, places_, depth_;
  const bool is_padded_, has_images_;  // whether a block has whole images, in each of which zeros are at the same places
  const std::unique_ptr<T[]> lines_, rows_, products_;
};

template <typename T>
void run_blocks(const Convolution& of, const PackedMatrix& weights, int64_t rows_of_block, T* result) {
  const int64_t rows = of.batch * of.positions.at[2], blocks = (rows + rows_of_block - 1) / rows_of_block;
  at::parallel_for(0, blocks, 1, [&](int64_t begin, int64_t end) {
    BlockWorker<T> worker(of, weights, result, rows_of_block);
    for (int64_t block = begin; block < end; ++block) {
      const int64_t first = block * rows_of_block;
      worker.run({first, std::min(rows_of_block, rows - first)});
    }
  });
}

}  // namespace

std::optional<Convolution> in_blocks(const Convolution& of, bool is_packed) {
  if (of.groups != 1 || of.is_transposed || of.is_last || is_half(of.x.scalar_type())) return std::nullopt;
  Convolution line = of;
  if (of.dims > 1) {  // a window of one element sees no dimensions
    const Sizes steps = last_strides(of.x, of.dims), &sizes = of.image;
    const auto are = [&of](const Sizes& each, int64_t number) { return std::all_of(each.at, each.at + most_dims, [=](int64_t size) { return size == number; }); };
    const bool is_dense = steps.at[2] == 1 && steps.at[1] == sizes.at[2] && (of.dims == 2 || steps.at[0] == sizes.at[1] * sizes.at[2]);
    if (!are(of.kernel, 1) || !are(of.stride, 1) || !are(of.padding, 0) || !is_dense) return std::nullopt;
    line.image = line.positions = {{1, 1, sizes.product()}};
  }
  const int64_t positions = line.positions.at[2], places = line.kernel.at[2];
  const bool is_product = places == 1 && of.channels >= fewest_channels && of.outputs >= fewest_channels && has_onednn_products();
  if (positions > most_of_image && places < long_window && !is_product) return std::nullopt;
  return of.batch * positions >= (is_packed ? fewest_of_packed : fewest_of_unpacked) ? std::optional(std::move(line)) : std::nullopt;
}

bool convolve_in_blocks(const Convolution& of, PackedWeights* own, const at::Tensor& result) {
  const int64_t positions = of.positions.at[2], depth = of.channels * of.kernel.at[2];
  const int64_t fitting = bytes_of_block / (depth * static_cast<int64_t>(of.x.element_size()));
  int64_t rows = std::clamp(fitting, fewest_rows_of_block, most_rows_of_block);
  if (positions <= rows) rows -= rows % positions;  // whole images
  const Matrix b{const_cast<void*>(of.weight.const_data_ptr()), of.x.scalar_type(), {depth, of.outputs}, {1, depth}};
  const PackedMatrix weights = own != nullptr && own->may_pack(depth * of.outputs) ? own->packed(b, rows) : pack(b, rows);
  if (!weights) return false;
  of.x.scalar_type() == at::kFloat ? run_blocks(of, weights, rows, result.mutable_data_ptr<float>())
                                  : run_blocks(of, weights, rows, result.mutable_data_ptr<double>());
  return true;
}

}  // namespace fourfold::graph
