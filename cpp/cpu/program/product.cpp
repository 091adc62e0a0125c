// Products of a loop's steps: the matrix that all steps multiply with is packed once.
#include "cpu/program/product.h"

#include <algorithm>
#include <cstdlib>

#include "cpu/kernels/packed_product.h"
#include "cpu/memory.h"

namespace fourfold::cpu {
namespace {

using program::Tensor;

// Multiply-adds that are worth another thread, and the barrier behind each stage of a step.
constexpr int64_t worth_a_thread = 1 << 17;

struct Free {
  void operator()(char* memory) const { std::free(memory); }
};

// b: (depth, columns), or a batch of such.
class PackedMatrix final : public program::Product {
 public:
  // rows: of the values that it is multiplied with.
  PackedMatrix(const Tensor& b, int64_t rows)
      : kind_(b.kind), panels_(panels_for_rows(rows)), batch_(b.dim == 3 ? b.sizes[0] : 1), depth_(b.sizes[b.dim - 2]), columns_(b.sizes[b.dim - 1]),
        bytes_(packed_bytes(kind_, depth_, columns_)),
        packed_(static_cast<char*>(allocate(std::max<int64_t>(1, batch_ * bytes_), 1))) {
    for (int64_t k = 0; k < batch_; ++k) {
      const int64_t offset = b.dim == 3 ? k * b.strides[0] * element_size(kind_) : 0;
      pack_matrix(kind_, panels_, static_cast<const char*>(b.data) + offset, b.strides[b.dim - 2], b.strides[b.dim - 1], depth_,
                  columns_, packed_.get() + k * bytes_);
    }
  }

  bool takes(const Tensor& a, const Tensor* start, const Tensor& out) const override {
    const int dim = out.dim;
    const auto fits = [&](const Tensor& tensor, int64_t last) {
      return tensor.dim == dim && tensor.kind == kind_ && tensor.sizes[dim - 1] == last;
    };
    if ((dim != 2 && dim != 3) || (dim == 2 && batch_ != 1) || (dim == 3 && out.sizes[0] != batch_)) return false;
    if (!fits(a, depth_) || !fits(out, columns_) || !lies_side_by_side(out)) return false;
    if (!std::equal(a.sizes, a.sizes + dim - 1, out.sizes)) return false;
    if (start == nullptr) return true;
    return start->kind == kind_ && start->dim >= 1 && start->dim <= dim && lies_side_by_side(*start) &&
           std::equal(start->sizes, start->sizes + start->dim, out.sizes + dim - start->dim);
  }

  int64_t parts(int64_t rows) const override {
    return std::clamp<int64_t>(batch_ * rows * depth_ * columns_ / worth_a_thread, 1, panels_of_columns(kind_, panels_, columns_));
  }

  void run(const Tensor& a, const Tensor* start, const Tensor& out, int64_t part, int64_t parts) const override {
    const int dim = out.dim;
    const int64_t size = element_size(kind_), panels = panels_of_columns(kind_, panels_, columns_);
    const auto batch_step = [&](const Tensor& tensor) { return tensor.dim == 3 ? tensor.strides[0] * size : 0; };
    for (int64_t k = 0; k < batch_; ++k) {
      const bool has_rows = start != nullptr && start->dim >= 2;
      const PackedProduct job{
          .kind = kind_,
          .panels = panels_,
          .rows = out.sizes[dim - 2],
          .depth = depth_,
          .columns = columns_,
          .a = static_cast<const char*>(a.data) + k * batch_step(a),
          .a_row = a.strides[dim - 2],
          .a_column = a.strides[dim - 1],
          .packed = packed_.get() + k * bytes_,
          .start = start == nullptr ? nullptr : static_cast<const char*>(start->data) + k * batch_step(*start),
          .start_row = has_rows ? start->strides[start->dim - 2] : 0,
          .out = static_cast<char*>(out.data) + k * batch_step(out),
          .out_row = out.strides[dim - 2],
      };
      multiply_packed(job, panels * part / parts, panels * (part + 1) / parts);
    }
  }

 private:
  static bool lies_side_by_side(const Tensor& tensor) {
    return tensor.strides[tensor.dim - 1] == 1 || tensor.sizes[tensor.dim - 1] == 1;
  }

  const Kind kind_;
  const Panels panels_;
  const int64_t batch_;
  const int64_t depth_;
  const int64_t columns_;
  const int64_t bytes_;
  const std::unique_ptr<char, Free> packed_;
};

}  // namespace

std::unique_ptr<const program::Product> product_with(const Tensor& b, int64_t rows) {
  const bool is_matrix = (b.dim == 2 || b.dim == 3) && (b.kind == Kind::float32 || b.kind == Kind::float64);
  if (!is_matrix || (b.strides[b.dim - 1] != 1 && b.strides[b.dim - 2] != 1)) return nullptr;
  return std::make_unique<PackedMatrix>(b, rows);
}

}  // namespace fourfold::cpu
