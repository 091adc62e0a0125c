// Sums of columns over the rows. The split of the rows into chunks doesn't depend on the number of threads, and the
// chunks' sums are added in order, so the result has the same bits for any number of threads. Values of float32 are
// added in float32 for rows_of_sum rows of a chunk, and these sums in float64.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "cpu/memory.h"
#include "cpu/program/schedule.h"
#include "program/layout.h"

namespace fourfold::cpu {

class ColumnSums {
 public:
  ColumnSums(const program::Program& program, const Schedule& schedule, const std::vector<int64_t>& sizes,
             const program::Tensor* outputs);

  // The number of chunks of `rows` rows.
  static int64_t chunks_of(int64_t rows);

  bool empty() const { return schedule_.column_sums.empty(); }
  int64_t chunks() const { return chunks_; }
  int64_t rows_of_chunk() const { return rows_of_chunk_; }
  // A chunk's sums, zeroed, one output after the other: `columns` in float64, then as many in float32.
  double* begin(int64_t chunk);
  static int64_t doubles(int64_t columns) { return columns + (columns + 1) / 2; }
  // Adds a chunk's float32 sums to those in float64; twice does no harm.
  void settle(int64_t chunk);
  static void settle(int64_t count, float* part, double* sums);
  // Adds the chunks and writes the outputs.
  void finish();

 private:
  void put(double* sums, int output) const;

  const program::Program& program_;
  const Schedule& schedule_;
  const std::vector<int64_t>& sizes_;
  const program::Tensor* outputs_;
  int64_t columns_ = 1;
  int64_t rows_of_chunk_ = 0;
  int64_t chunks_ = 1;
  int64_t each_ = 0;  // of a chunk
  std::unique_ptr<double, Release> sums_;
};

}  // namespace fourfold::cpu
