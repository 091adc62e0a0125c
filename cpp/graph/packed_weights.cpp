#include "packed_weights.h"

#include <algorithm>

namespace fourfold::graph {
namespace {

// Elements. Packing takes as long as some twenty products.
constexpr int64_t most_at_once = int64_t{1} << 20, most_elements = int64_t{1} << 24;
constexpr int first_call_of_large = 3;

}  // namespace

bool PackedWeights::may_pack(int64_t elements) const { return is_own_ && elements <= most_elements; }

bool PackedWeights::multiply(const Matrix& a, const Matrix& b, const at::Tensor* bias, const Matrix& out) {
  if (!may_pack(b.sizes[0] * b.sizes[1])) return false;
  const Product packed = product(b, a.sizes[0]);
  if (packed == nullptr) return false;
  const fourfold_tensor factor = a.given(), to = out.given();
  if (bias == nullptr) return fourfold_product_run(packed.get(), &factor, nullptr, &to) == 0;
  const fourfold_tensor start{const_cast<void*>(bias->const_data_ptr()), static_cast<int32_t>(bias->scalar_type()),
                              static_cast<int32_t>(bias->dim()), bias->sizes().data(), bias->strides().data(), nullptr};
  return fourfold_product_run(packed.get(), &factor, &start, &to) == 0;
}

PackedWeights& PackedWeights::of_group(int64_t group) {
  if (group == 0) return *this;
  const std::scoped_lock lock(mutex_);
  const auto k = static_cast<size_t>(group) - 1;
  if (groups_.size() <= k) groups_.resize(k + 1);
  if (groups_[k] == nullptr) groups_[k] = std::make_unique<PackedWeights>();
  return *groups_[k];
}

PackedWeights::Product PackedWeights::product(const Matrix& b, int64_t rows) {
  const std::scoped_lock lock(mutex_);
  const bool is_large = b.sizes[0] * b.sizes[1] > most_at_once;
  if (is_large && calls_ < first_call_of_large && ++calls_ < first_call_of_large) return nullptr;
  const auto suits = [rows](const Product& each) {
    return each == nullptr || fourfold_product_suits(each.get(), rows) != 0;
  };
  const auto found = std::find_if(products_.begin(), products_.end(), suits);
  if (found != products_.end()) return *found;
  const fourfold_tensor matrix = b.given();
  const auto cpu = static_cast<int32_t>(at::kCPU);
  products_.emplace_back(fourfold_product_new(&matrix, rows, cpu), fourfold_product_delete);
  return products_.back();
}

}  // namespace fourfold::graph
