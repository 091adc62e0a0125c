// A graph's own matrix, packed for products with few rows.
#pragma once

#include <fourfold/program.h>

#include <ATen/core/Tensor.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

namespace fourfold::graph {

// A matrix in a tensor's memory.
struct Matrix {
  void* data;
  at::ScalarType dtype;
  int64_t sizes[2];
  int64_t strides[2];

  fourfold_tensor given() const { return {data, static_cast<int32_t>(dtype), 2, sizes, strides, data}; }
};

class PackedMatrix {
 public:
  // out = a b, or bias + a b; rows of out are contiguous. b is a view of `owner`, whose version tells that it was
  // changed; each call gives the same view. Returns false and does nothing for a matrix that is not packed: with another
  // dtype than float32 and float64, too large, or large and among the first calls, which would take long.
  bool multiply(const Matrix& a, const at::Tensor& owner, const Matrix& b, const at::Tensor* bias, const Matrix& out);
  // Others can now write to the matrix in ways that torch doesn't count: from now on it is read as it is.
  void stop() { is_own_ = false; }

 private:
  using Product = std::shared_ptr<const fourfold_product>;

  Product product(const at::Tensor& owner, const Matrix& b, int64_t rows);

  std::atomic<bool> is_own_ = true;
  std::mutex mutex_;
  const void* data_ = nullptr;
  uint32_t version_ = 0;
  int calls_ = 0;  // with this version
  std::vector<Product> products_;  // for different numbers of rows; null if it can't be packed
};

}  // namespace fourfold::graph
