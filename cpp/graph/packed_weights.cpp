#include "packed_weights.h"

#include <algorithm>

namespace fourfold::graph {
namespace {

// Elements. Packing takes as long as some twenty products.
constexpr int64_t most_at_once = int64_t{1} << 20, most_elements = int64_t{1} << 24;
constexpr int first_call_of_large = 3;

}  // namespace

bool PackedMatrix::multiply(const Matrix& a, const at::Tensor* bias, const Matrix& out, bool in_parallel) const {
  const fourfold_tensor factor = a.given(), to = out.given();
  fourfold_tensor start{};
  if (bias != nullptr) {
    start = {const_cast<void*>(bias->const_data_ptr()), static_cast<int32_t>(bias->scalar_type()), static_cast<int32_t>(bias->dim()),
             bias->sizes().data(), bias->strides().data(), nullptr};
  }
  return fourfold_product_run(product_.get(), &factor, bias == nullptr ? nullptr : &start, &to, in_parallel ? 1 : 0) == 0;
}

PackedMatrix pack(const Matrix& b, int64_t rows) {
  const fourfold_tensor matrix = b.given();
  return PackedMatrix(fourfold_product_new(&matrix, rows, static_cast<int32_t>(at::kCPU)));
}

bool PackedWeights::may_pack(int64_t elements) const { return is_own_ && elements <= most_elements; }

bool PackedWeights::multiply(const Matrix& a, const Matrix& b, const at::Tensor* bias, const Matrix& out) {
  const PackedMatrix matrix = packed(b, a.sizes[0]);
  return matrix && matrix.multiply(a, bias, out, /*in_parallel=*/true);
}

at::Tensor PackedWeights::layer(int64_t elements, const std::function<at::Tensor()>& pack) {
  if (!may_pack(elements)) return {};
  const std::scoped_lock lock(mutex_);
  if (!layer_.defined()) layer_ = pack();
  return layer_;
}

PackedWeights& PackedWeights::of_group(int64_t group) {
  if (group == 0) return *this;
  const std::scoped_lock lock(mutex_);
  const auto k = static_cast<size_t>(group) - 1;
  if (groups_.size() <= k) groups_.resize(k + 1);
  if (groups_[k] == nullptr) groups_[k] = std::make_unique<PackedWeights>();
  return *groups_[k];
}

PackedMatrix PackedWeights::packed(const Matrix& b, int64_t rows) {
  if (!may_pack(b.sizes[0] * b.sizes[1])) return PackedMatrix();
  const std::scoped_lock lock(mutex_);
  const bool is_large = b.sizes[0] * b.sizes[1] > most_at_once;
  if (is_large && calls_ < first_call_of_large && ++calls_ < first_call_of_large) return PackedMatrix();
  const auto found = std::find_if(matrices_.begin(), matrices_.end(), [rows](const PackedMatrix& each) { return !each || each.suits(rows); });
  if (found != matrices_.end()) return *found;
  matrices_.push_back(pack(b, rows));
  return matrices_.back();
}

}  // namespace fourfold::graph
