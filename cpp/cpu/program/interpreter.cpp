#include "cpu/program/interpreter.h"

#include <algorithm>
#include <cstring>

#include "cpu/parallel.h"
#include "cpu/program/column_sums.h"
#include "cpu/program/worker.h"

namespace fourfold::cpu {
namespace {

using program::Level;
using program::Program;

// From this many columns on, all threads share a row.
constexpr int64_t long_columns = 16384;
// A thread's least share, in additions.
constexpr int64_t share = 200'000;

// Runs all stages of some rows.
void run_rows(const Invocation& of, Worker& worker, int64_t row, int64_t rows) {
  worker.enter_rows(row, rows);
  for (const Stage& stage : of.schedule.stages) {
    worker.run_rows(stage);
    worker.broadcast(stage);
    int64_t column = 0;
    do {
      const int64_t columns = std::min(rows > 1 ? of.columns : of.schedule.block, of.columns - column);
      worker.run_block(stage, row * of.columns + column, column, columns, column == 0);
      column += columns;
    } while (column < of.columns);
  }
  worker.leave_rows();
}

// Threads split the rows, in chunks if there are column sums.
void run_by_rows(const Invocation& of, ColumnSums& sums) {
  const int64_t together = sums.empty() ? of.rows_of_block() : sums.rows_of_chunk();
  const int64_t least = std::max<int64_t>(1, grain(of.schedule) / std::max<int64_t>(1, of.columns) / together);
  parallel((of.row_count + together - 1) / together, least, [&](int64_t begin, int64_t end) {
    Worker worker(of);
    for (int64_t k = begin; k < end; ++k) {
      if (!sums.empty()) worker.add_to(sums.begin(k), k * together);
      const int64_t last = std::min(of.row_count, (k + 1) * together);
      for (int64_t row = k * together; row < last; row += of.rows_of_block()) {
        run_rows(of, worker, row, std::min(of.rows_of_block(), last - row));
      }
      if (!sums.empty()) sums.settle(k);
    }
  });
}

// The results of a stage's reductions in each block of a row.
class Partials {
 public:
  Partials(const Stage& stage, int64_t blocks) {
    for (const Step& step : stage.elements) {
      if (step.kind == Step::Kind::reduce) reductions_.push_back(&step);
    }
    values_.resize(reductions_.size() * static_cast<size_t>(blocks));
  }

  void keep(const Worker& worker, int64_t block) {
    uint64_t* to = &values_[static_cast<size_t>(block) * reductions_.size()];
    for (const Step* step : reductions_) std::memcpy(to++, worker.place(step->to), sizeof *to);  // at most so many bytes
  }

  // Combines them in the order of the blocks, for any assignment to threads.
  void combine(Worker& whole) const {
    for (size_t k = 0; k < reductions_.size(); ++k) {
      const Step& step = *reductions_[k];
      std::memcpy(whole.place(step.to), &values_[k], 8);
      for (size_t at = k + reductions_.size(); at < values_.size(); at += reductions_.size()) {
        step.reduction.combine(&values_[at], whole.place(step.to));
      }
    }
  }

 private:
  std::vector<const Step*> reductions_;
  std::vector<uint64_t> values_;
};

// Threads share each row, stage by stage.
void run_by_columns(const Invocation& of, ColumnSums& sums) {
  Worker whole(of);
  const int64_t block = of.schedule.block, blocks = std::max<int64_t>(1, (of.columns + block - 1) / block);
  const int64_t least = std::max<int64_t>(1, grain(of.schedule) / block);
  for (int64_t row = 0; row < of.row_count; ++row) {
    const int64_t chunk = sums.empty() ? 0 : row / sums.rows_of_chunk();
    if (!sums.empty() && row % sums.rows_of_chunk() == 0) whole.add_to(sums.begin(chunk), row);
    whole.enter_rows(row, 1);
    for (const Stage& stage : of.schedule.stages) {
      whole.run_rows(stage);
      Partials partials(stage, blocks);
      parallel(blocks, least, [&](int64_t begin, int64_t end) {
        Worker worker(of, &whole);
        worker.broadcast(stage);
        for (int64_t k = begin; k < end; ++k) {
          const int64_t column = k * block;
          worker.run_block(stage, row * of.columns + column, column, std::min(block, of.columns - column), true);
          partials.keep(worker, k);
        }
      });
      partials.combine(whole);
    }
    whole.leave_rows();
    if (!sums.empty() && (row + 1) % sums.rows_of_chunk() == 0) sums.settle(chunk);
  }
  if (!sums.empty()) sums.settle(sums.chunks() - 1);
}

std::vector<std::vector<int64_t>> strides_of(const Program& program, const std::vector<int64_t>& sizes,
                                             const program::Tensor* inputs, const program::Tensor* outputs, Level level) {
  std::vector<std::vector<int64_t>> result;
  const auto add = [&](const std::vector<program::Dim>& dims, Level own, const int64_t* strides) {
    result.push_back(own == level ? program::axis_strides(dims, strides, sizes) : std::vector<int64_t>(sizes.size()));
    if (level == Level::row) result.back().resize(program.outer);
  };
  for (size_t k = 0; k < program.inputs.size(); ++k) add(program.inputs[k].dims, program.inputs[k].level, inputs[k].strides);
  for (size_t k = 0; k < program.outputs.size(); ++k) add(program.outputs[k].dims, program.outputs[k].level, outputs[k].strides);
  return result;
}

}  // namespace

int64_t grain(const Schedule& schedule) { return std::max<int64_t>(1, share / schedule.cost); }

bool threads_share_rows(const Program& program, int64_t rows, int64_t columns) {
  const bool has_column_sums = std::any_of(program.outputs.begin(), program.outputs.end(),
                                           [](const auto& output) { return output.level == Level::column; });
  const int64_t shares = has_column_sums ? ColumnSums::chunks_of(rows) : rows;
  return shares < torch_threads() && columns >= long_columns;
}

void interpret(const Program& program, const Schedule& schedule, const std::vector<int64_t>& sizes, const program::Tensor* inputs,
              const program::Tensor* outputs) {
  const std::vector<int64_t> outer(sizes.begin(), sizes.begin() + program.outer);
  Invocation of{program, schedule, inputs, outputs,
                Space(sizes, strides_of(program, sizes, inputs, outputs, Level::element)),
                Space(outer, strides_of(program, sizes, inputs, outputs, Level::row))};
  if (program.has_rows) of.row_count = of.rows.numel();
  for (size_t a = program.outer; a < sizes.size(); ++a) of.columns *= sizes[a];
  if (!schedule.once.empty()) Worker(of).run_once();
  ColumnSums sums(program, schedule, sizes, outputs);
  if (of.row_count == 0) return sums.finish();
  if (of.columns == 0 && !program.has_rows) return;
  const bool by_rows = program.has_rows && !threads_share_rows(program, of.row_count, of.columns);
  by_rows ? run_by_rows(of, sums) : run_by_columns(of, sums);
  sums.finish();
}

}  // namespace fourfold::cpu
