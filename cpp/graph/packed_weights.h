// A matrix of a model's own, packed for products with few rows.
#pragma once

#include <fourfold/program.h>

#include <ATen/core/Tensor.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

namespace fourfold::graph {

// A matrix in memory.
struct Matrix {
  void* data;
  at::ScalarType dtype;
  int64_t sizes[2];
  int64_t strides[2];

  fourfold_tensor given() const { return {data, static_cast<int32_t>(dtype), 2, sizes, strides, data}; }
};

// A packed matrix, for products that others run at the same time.
class PackedMatrix {
 public:
  explicit PackedMatrix(fourfold_product* product = nullptr) : product_(product, fourfold_product_delete) {}

  explicit operator bool() const { return product_ != nullptr; }
  bool suits(int64_t rows) const { return fourfold_product_suits(product_.get(), rows) != 0; }
  // out = a b, or bias + a b; rows of out are contiguous. Returns false and does nothing for other dtypes than b's.
  // in_parallel: by all threads.
  bool multiply(const Matrix& a, const at::Tensor* bias, const Matrix& out, bool in_parallel) const;

 private:
  std::shared_ptr<fourfold_product> product_;
};

// Packs b as best for so many rows. Null if its dtype or layout can't be packed.
PackedMatrix pack(const Matrix& b, int64_t rows);

class PackedWeights {
 public:
  // Whether a matrix of so many elements is ever packed.
  bool may_pack(int64_t elements) const;
  // out = a b, or bias + a b; rows of out are contiguous, and b is the same in every call. Returns false and does nothing
  // for a matrix that is not packed: of another dtype than floating-point ones, too large, or large and among the first
  // calls, which would take long.
  bool multiply(const Matrix& a, const Matrix& b, const at::Tensor* bias, const Matrix& out);
  // b for products of so many rows, likewise.
  PackedMatrix packed(const Matrix& b, int64_t rows);
  // A recurrent layer's weights of so many elements in the layout of its kernels, which `pack` makes in the first call.
  // Undefined if they may not be packed.
  at::Tensor layer(int64_t elements, const std::function<at::Tensor()>& pack);
  // Of a group's own matrix. may_pack() is for all groups.
  PackedWeights& of_group(int64_t group);
  // Others may now write to the matrix: it is read as it is from now on.
  void stop() { is_own_ = false; }

 private:
  std::atomic<bool> is_own_ = true;
  std::mutex mutex_;
  std::vector<std::unique_ptr<PackedWeights>> groups_;  // of the second group and later ones
  int calls_ = 0;
  at::Tensor layer_;
  std::vector<PackedMatrix> matrices_;  // for different numbers of rows; null if the dtype or layout can't be packed
};

}  // namespace fourfold::graph
