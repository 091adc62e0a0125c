// Products of a loop's steps: the matrix that all steps use is packed once.
#include "cpu/program/product.h"

#include <algorithm>
#include <vector>

#include "cpu/kernels/half_product.h"
#include "cpu/kernels/packed_product.h"
#include "cpu/memory.h"

namespace fourfold::cpu {
namespace {

using program::Tensor;

// The multiply-adds that justify another thread and its barrier after each stage of a step.
constexpr int64_t worth_a_thread = 1 << 17;

// b: (depth, columns), or a batch of them.
struct PackedMatrix {
  PackedMatrix(const Tensor& b, PanelWidth panels)
      : kind(b.kind), batch(b.dim == 3 ? b.sizes[0] : 1), depth(b.sizes[b.dim - 2]), columns(b.sizes[b.dim - 1]),
        bytes(packed_bytes(kind, depth, columns)),
        packed(static_cast<char*>(allocate(std::max<int64_t>(1, batch * bytes), 1))) {
    for (int64_t k = 0; k < batch; ++k) {
      const int64_t offset = b.dim == 3 ? k * b.strides[0] * element_size(kind) : 0;
      pack_matrix(kind, panels, static_cast<const char*>(b.data) + offset, b.strides[b.dim - 2], b.strides[b.dim - 1], depth,
                  columns, packed.get() + k * bytes);
    }
  }

  Kind kind;
  int64_t batch;
  int64_t depth;
  int64_t columns;
  int64_t bytes;
  std::unique_ptr<char, Release> packed;
};

bool lies_side_by_side(const Tensor& tensor) {
  return tensor.strides[tensor.dim - 1] == 1 || tensor.sizes[tensor.dim - 1] == 1;
}

class PackedProducts final : public program::Product {
 public:
  PackedProducts(const Tensor* b, int count, PanelWidth panels) : panels_(panels) {
    for (int k = 0; k < count; ++k) matrices_.emplace_back(b[k], panels);
  }

  bool suits(int64_t rows) const override { return panels_for_rows(rows) == panels_; }

  bool takes(const Tensor* a, const Tensor* start, const Tensor& out) const override {
    const int dim = out.dim;
    const auto fits = [&](const Tensor& tensor, int64_t last) {
      return tensor.dim == dim && tensor.kind == first().kind && tensor.sizes[dim - 1] == last;
    };
    if ((dim != 2 && dim != 3) || (dim == 2 && first().batch != 1) || (dim == 3 && out.sizes[0] != first().batch)) return false;
    if (!fits(out, first().columns) || !lies_side_by_side(out)) return false;
    for (size_t k = 0; k < matrices_.size(); ++k) {
      if (!fits(a[k], matrices_[k].depth) || !std::equal(a[k].sizes, a[k].sizes + dim - 1, out.sizes)) return false;
    }
    if (start == nullptr) return true;
    return start->kind == first().kind && start->dim >= 1 && start->dim <= dim && lies_side_by_side(*start) &&
           std::equal(start->sizes, start->sizes + start->dim, out.sizes + dim - start->dim);
  }

  int64_t parts(int64_t rows) const override {
    int64_t depth = 0;
    for (const PackedMatrix& matrix : matrices_) depth += matrix.depth;
    return std::clamp<int64_t>(first().batch * rows * depth * first().columns / worth_a_thread, 1, panels());
  }

  void run(const Tensor* a, const Tensor* start, const Tensor& out, int64_t part, int64_t parts) const override {
    const int dim = out.dim;
    const int64_t size = element_size(first().kind);
    const auto batch_step = [&](const Tensor& tensor) { return tensor.dim == 3 ? tensor.strides[0] * size : 0; };
    for (int64_t k = 0; k < first().batch; ++k) {
      const bool has_rows = start != nullptr && start->dim >= 2;
      PackedProduct job{
          .kind = first().kind,
          .panels = panels_,
          .rows = out.sizes[dim - 2],
          .depth = first().depth,
          .columns = first().columns,
          .a = static_cast<const char*>(a->data) + k * batch_step(*a),
          .a_row = a->strides[dim - 2],
          .a_column = a->strides[dim - 1],
          .packed = first().packed.get() + k * first().bytes,
          .start = start == nullptr ? nullptr : static_cast<const char*>(start->data) + k * batch_step(*start),
          .start_row = has_rows ? start->strides[start->dim - 2] : 0,
          .out = static_cast<char*>(out.data) + k * batch_step(out),
          .out_row = out.strides[dim - 2],
      };
      if (matrices_.size() > 1) {  // only without batch
        job.a2 = a[1].data;
        job.a2_row = a[1].strides[0];
        job.a2_column = a[1].strides[1];
        job.packed2 = matrices_[1].packed.get();
        job.depth2 = matrices_[1].depth;
      }
      multiply_packed(job, panels() * part / parts, panels() * (part + 1) / parts);
    }
  }

 private:
  const PackedMatrix& first() const { return matrices_[0]; }
  int64_t panels() const { return panels_of_columns(first().kind, panels_, first().columns); }

  const PanelWidth panels_;
  std::vector<PackedMatrix> matrices_;
};

// A matrix of bfloat16 or float16.
class HalfProducts final : public program::Product {
 public:
  explicit HalfProducts(const Tensor& b)
      : kind_(b.kind), depth_(b.sizes[0]), columns_(b.sizes[1]),
        packed_(static_cast<char*>(allocate(std::max<int64_t>(1, panels() * columns_of_half_panel() * depth_ * 2), 1))) {
    pack_half(b.data, b.strides[0], b.strides[1], depth_, columns_, packed_.get());
  }

  bool suits(int64_t) const override { return true; }

  bool takes(const Tensor* a, const Tensor* start, const Tensor& out) const override {
    const auto fits = [&](const Tensor& tensor, int64_t last) {
      return tensor.dim == 2 && tensor.kind == kind_ && tensor.sizes[1] == last;
    };
    if (!fits(out, columns_) || !fits(*a, depth_) || a->sizes[0] != out.sizes[0] || !lies_side_by_side(out)) return false;
    if (start == nullptr) return true;
    return start->kind == kind_ && start->dim >= 1 && start->dim <= 2 && lies_side_by_side(*start) &&
           std::equal(start->sizes, start->sizes + start->dim, out.sizes + 2 - start->dim);
  }

  int64_t parts(int64_t rows) const override {
    return std::clamp<int64_t>(rows * depth_ * columns_ / worth_a_thread, 1, panels());
  }

  void run(const Tensor* a, const Tensor* start, const Tensor& out, int64_t part, int64_t parts) const override {
    const PackedProduct job{
        .kind = kind_,
        .panels = PanelWidth::wide,
        .rows = out.sizes[0],
        .depth = depth_,
        .columns = columns_,
        .a = a->data,
        .a_row = a->strides[0],
        .a_column = a->strides[1],
        .packed = packed_.get(),
        .start = start == nullptr ? nullptr : start->data,
        .start_row = start != nullptr && start->dim == 2 ? start->strides[0] : 0,
        .out = out.data,
        .out_row = out.strides[0],
    };
    multiply_half(job, panels() * part / parts, panels() * (part + 1) / parts);
  }

 private:
  int64_t panels() const { return (columns_ + columns_of_half_panel() - 1) / columns_of_half_panel(); }

  const Kind kind_;
  const int64_t depth_, columns_;
  const std::unique_ptr<char, Release> packed_;
};

bool can_be_packed(const Tensor& b) {
  const bool is_matrix = (b.dim == 2 || b.dim == 3) && (b.kind == Kind::float32 || b.kind == Kind::float64);
  return is_matrix && (b.strides[b.dim - 1] == 1 || b.strides[b.dim - 2] == 1);
}

}  // namespace

std::unique_ptr<const program::Product> product_with(const Tensor* b, int count, int64_t rows) {
  const PanelWidth panels = panels_for_rows(rows);
  if (count == 1 && b->dim == 2 && is_half(b->kind) && columns_of_half_panel() > 0) return std::make_unique<HalfProducts>(*b);
  if (!std::all_of(b, b + count, can_be_packed)) return nullptr;
  if (count > 1) {
    const bool are_alike = b[0].dim == 2 && b[1].dim == 2 && b[0].kind == b[1].kind && b[0].sizes[1] == b[1].sizes[1];
    if (!are_alike || panels == PanelWidth::wide) return nullptr;
  }
  return std::make_unique<PackedProducts>(b, count, panels);
}

}  // namespace fourfold::cpu
