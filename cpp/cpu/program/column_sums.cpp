#include "cpu/program/column_sums.h"

#include <algorithm>

#include "cpu/memory.h"
#include "cpu/parallel.h"
#include "cpu/program/space.h"

namespace fourfold::cpu {
namespace {

using program::Operation;
using program::Type;

constexpr int64_t fewest_rows = 16;  // in a chunk, so that its sums are small compared with it
constexpr int64_t most_chunks = 32;
constexpr int64_t share = 1 << 17;  // minimum for a thread, in additions

int64_t rows_of_each(int64_t rows) { return std::max(fewest_rows, (rows + most_chunks - 1) / most_chunks); }

}  // namespace

int64_t ColumnSums::chunks_of(int64_t rows) {
  return std::max<int64_t>(1, (rows + rows_of_each(rows) - 1) / rows_of_each(rows));
}

ColumnSums::ColumnSums(const program::Program& program, const Schedule& schedule, const std::vector<int64_t>& sizes,
                       const program::Tensor* outputs)
    : program_(program), schedule_(schedule), sizes_(sizes), outputs_(outputs) {
  if (empty()) return;
  int64_t rows = 1;
  for (int a = 0; a < program.outer; ++a) rows *= sizes[a];
  for (size_t a = program.outer; a < sizes.size(); ++a) columns_ *= sizes[a];
  rows_of_chunk_ = rows_of_each(rows);
  chunks_ = chunks_of(rows);
  each_ = doubles(columns_) * static_cast<int64_t>(schedule.column_sums.size());
  sums_.reset(static_cast<double*>(allocate(std::max<int64_t>(1, chunks_ * each_), sizeof(double))));
  if (rows == 0) begin(0);
}

double* ColumnSums::begin(int64_t chunk) {
  double* const sums = sums_.get() + chunk * each_;
  std::fill_n(sums, each_, 0.0);
  return sums;
}

void ColumnSums::settle(int64_t count, float* part, double* sums) {
  for (int64_t i = 0; i < count; ++i) sums[i] += static_cast<double>(part[i]);
  std::fill_n(part, count, 0.0F);
}

void ColumnSums::settle(int64_t chunk) {
  for (size_t t = 0; t < schedule_.column_sums.size(); ++t) {
    double* const sums = sums_.get() + chunk * each_ + static_cast<int64_t>(t) * doubles(columns_);
    settle(columns_, reinterpret_cast<float*>(sums + columns_), sums);
  }
}

void ColumnSums::finish() {
  if (empty() || columns_ == 0) return;
  for (size_t t = 0; t < schedule_.column_sums.size(); ++t) {
    double* const sums = sums_.get() + static_cast<int64_t>(t) * doubles(columns_);
    parallel(columns_, share / chunks_, [&](int64_t first, int64_t last) {
      for (int64_t k = 1; k < chunks_; ++k) {
        const double* const more = sums + k * each_;
        for (int64_t i = first; i < last; ++i) sums[i] += more[i];
      }
    });
    put(sums, schedule_.column_sums[t].output);
  }
}

// Converts double sums by way of the compute type.
void ColumnSums::put(double* sums, int output) const {
  const auto& described = program_.outputs[output];
  const program::Tensor& tensor = outputs_[output];
  const auto strides = program::axis_strides(described.dims, tensor.strides, sizes_);
  const Space space({sizes_.begin() + program_.outer, sizes_.end()}, {{strides.begin() + program_.outer, strides.end()}});
  ArrayFunction* const to_single = described.kind == Kind::float64 ? nullptr : function_of(Operation::to_float32, Type::float64);
  ArrayFunction* const store = store_of(described.kind);
  for (int64_t at = 0; at < columns_; at += program::reduction_block) {
    const int64_t count = std::min(program::reduction_block, columns_ - at);
    float single[program::reduction_block];
    uint16_t half[program::reduction_block];
    Operand from{sums + at, 1};
    if (to_single != nullptr) to_single(count, &from, single), from.data = single;
    if (store != nullptr) store(count, &from, half), from.data = half;
    space.scatter(0, from.data, element_size(described.kind), at, count, tensor.data);
  }
}

}  // namespace fourfold::cpu
