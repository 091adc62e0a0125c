// Sums over the rows, a column each. The rows are cut into chunks, whatever the number of threads, whose sums are added up
// in their order: the same bits from any number of threads.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "cpu/program/schedule.h"
#include "program/layout.h"

namespace fourfold::cpu {

class Totals {
 public:
  Totals(const program::Program& program, const Schedule& schedule, const std::vector<int64_t>& sizes,
         const program::Tensor* outputs);

  bool empty() const { return schedule_.totals.empty(); }
  int64_t chunks() const { return chunks_; }
  int64_t rows_of_chunk() const { return rows_of_chunk_; }
  // Where a chunk's sums are added to from now on, one total after the other: zeros.
  double* begin(int64_t chunk);
  // Into the outputs.
  void finish();

 private:
  struct Free {
    void operator()(double* memory) const;
  };

  void put(double* sums, int output) const;

  const program::Program& program_;
  const Schedule& schedule_;
  const std::vector<int64_t>& sizes_;
  const program::Tensor* outputs_;
  int64_t columns_ = 1;
  int64_t rows_of_chunk_ = 0;
  int64_t chunks_ = 1;
  int64_t each_ = 0;  // sums of a chunk
  std::unique_ptr<double, Free> sums_;
};

}  // namespace fourfold::cpu
