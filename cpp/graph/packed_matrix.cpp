#include "packed_matrix.h"

#include <algorithm>

namespace fourfold::graph {
namespace {

// Elements. Packing takes as long as some twenty products.
constexpr int64_t most_at_once = int64_t{1} << 20, most = int64_t{1} << 24;
constexpr int first_call_of_large = 3;

}  // namespace

bool PackedMatrix::multiply(
    const Matrix& a, const at::Tensor& owner, const Matrix& b, const at::Tensor* bias, const Matrix& out) {
  if (!is_own_ || owner.is_inference() || b.sizes[0] * b.sizes[1] > most) return false;
  const Product packed = product(owner, b, a.sizes[0]);
  if (packed == nullptr) return false;
  const fourfold_tensor factor = a.given(), to = out.given();
  if (bias == nullptr) return fourfold_product_run(packed.get(), &factor, nullptr, &to) == 0;
  const fourfold_tensor start{const_cast<void*>(bias->const_data_ptr()), static_cast<int32_t>(bias->scalar_type()),
                              static_cast<int32_t>(bias->dim()), bias->sizes().data(), bias->strides().data(), nullptr};
  return fourfold_product_run(packed.get(), &factor, &start, &to) == 0;
}

PackedMatrix::Product PackedMatrix::product(const at::Tensor& owner, const Matrix& b, int64_t rows) {
  const uint32_t version = owner.unsafeGetTensorImpl()->version_counter().current_version();
  const std::scoped_lock lock(mutex_);
  if (data_ != b.data || version_ != version) {
    products_.clear();
    calls_ = 0;
  }
  data_ = b.data;
  version_ = version;
  if (b.sizes[0] * b.sizes[1] > most_at_once && calls_ < first_call_of_large && ++calls_ < first_call_of_large) return nullptr;
  const auto suits = [rows](const Product& each) { return each == nullptr || fourfold_product_suits(each.get(), rows) != 0; };
  const auto found = std::find_if(products_.begin(), products_.end(), suits);
  if (found != products_.end()) return *found;
  const fourfold_tensor matrix = b.given();
  products_.emplace_back(fourfold_product_new(&matrix, rows, static_cast<int32_t>(at::kCPU)), fourfold_product_delete);
  return products_.back();
}

}  // namespace fourfold::graph
