#include "cpu/program/run.h"

#include <algorithm>
#include <cstring>

#include "cpu/parallel.h"
#include "cpu/program/column_sums.h"
#include "cpu/program/worker.h"

namespace fourfold::cpu {
namespace {

using program::Level;
using program::Program;

// Bytes of a block's slots that fit into the L1 cache, and the fewest elements of a block.
constexpr int64_t cache = 32768;
constexpr int64_t fewest = 256;
// From this many elements on, a tensor's rows are read in place, one at a time, instead of copied.
constexpr int64_t long_row = 64;
// From this many columns on, all threads share a row.
constexpr int64_t long_columns = 16384;
// Columns of a panel, if a row can be split.
constexpr int64_t panel_columns = 2048;
// A thread's minimum share, in additions; per_tensor is the cost of a tensor's element for its memory access.
constexpr int64_t share = 200'000;
constexpr int64_t per_tensor = 4;

// Runs all stages of some rows, for the columns from `first` to `last`.
void run_rows(const Call& call, Worker& worker, int64_t row, int64_t rows, int64_t first, int64_t last) {
  worker.enter_rows(row, rows);
  for (const Stage& stage : call.schedule.stages) {
    worker.run_rows(stage);
    const int64_t step = call.rows_of_block() > 1 ? call.columns : call.lanes;
    int64_t column = first;
    do {
      const int64_t columns = std::min(step, last - column);
      worker.frame().first = column == 0;
      worker.run_elements(stage, row * call.columns + column, columns, column);
      column += columns;
    } while (column < last);
  }
  worker.leave_rows();
}

// Threads split the rows: by single blocks, by panels, or by chunks with column sums.
void run_by_rows(const Call& call, ColumnSums& sums) {
  const int64_t block = call.rows_of_block();
  const int64_t panel = call.rows_of_panel();
  const int64_t step = call.panel_columns == 0 ? call.columns : call.panel_columns;
  const int64_t together = sums.empty() ? panel : sums.rows_of_chunk();
  const int64_t least = std::max<int64_t>(1, grain(call.program, call.schedule) / std::max<int64_t>(1, call.columns) / together);
  parallel((call.row_count + together - 1) / together, least, [&](int64_t begin, int64_t end) {
    Worker worker(call, nullptr);
    const int64_t last = std::min(call.row_count, end * together);
    for (int64_t row = begin * together, rows = 0; row < last; row += rows) {
      if (!sums.empty() && row % together == 0) worker.add_to(sums.begin(row / together));
      rows = std::min({panel, last - row, together - row % together});
      if (call.panel_columns > 0) rows = std::min(rows, call.elements.rows_left(row));
      int64_t column = 0;
      do {
        const int64_t columns = std::min(step, call.columns - column);
        worker.enter_panels(row, rows, column, columns);
        for (int64_t k = 0; k < rows; k += block) {
          run_rows(call, worker, row + k, std::min(block, rows - k), column, column + columns);
        }
        worker.leave_panels();
        column += columns;
      } while (column < call.columns);
    }
  });
}

// The blocks of one row, and the partial results of each.
class Partials {
 public:
  Partials(const Stage& stage, int64_t blocks) : stage_(stage), blocks_(blocks), values_(stage.sums.size() * blocks) {}

  void keep(Worker& worker, int64_t block) {
    for (size_t k = 0; k < stage_.sums.size(); ++k) std::memcpy(&values_[k * blocks_ + block], worker.slot(stage_.sums[k]).data, 8);
  }

  // Combines in the order of the blocks, for any assignment to threads.
  void combine(Worker& whole) {
    for (size_t k = 0; k < stage_.sums.size(); ++k) {
      uint64_t* values = &values_[k * blocks_];
      Slot slots[2] = {{whole.slot(stage_.sums[k]).data, 1}, {nullptr, 1}};
      std::memcpy(slots[0].data, values, 8);
      Frame frame{slots, 1, 1, false};
      for (int64_t b = 1; b < blocks_; ++b) {
        slots[1].data = &values[b];
        stage_.combine[k](frame, 1, Instruction{nullptr, 0, 0, {1, 0, 0}});
      }
    }
  }

 private:
  const Stage& stage_;
  int64_t blocks_;
  std::vector<uint64_t> values_;
};

// Threads share each row, stage by stage.
void run_by_columns(const Call& call, ColumnSums& sums) {
  Worker whole(call, nullptr);
  const int64_t blocks = std::max<int64_t>(1, (call.columns + call.lanes - 1) / call.lanes);
  const int64_t least = std::max<int64_t>(1, grain(call.program, call.schedule) / call.lanes);
  const int64_t row_length = call.elements.row();
  for (int64_t row = 0; row < call.row_count; ++row) {
    if (!sums.empty() && row % sums.rows_of_chunk() == 0) whole.add_to(sums.begin(row / sums.rows_of_chunk()));
    if (call.program.has_rows) whole.enter_rows(row, 1);
    for (const Stage& stage : call.schedule.stages) {
      whole.run_rows(stage);
      Partials partials(stage, blocks);
      parallel(blocks, least, [&](int64_t begin, int64_t end) {
        Worker worker(call, &whole);
        for (int64_t block = begin; block < end; ++block) {
          const int64_t last = std::min(call.columns, (block + 1) * call.lanes);
          worker.frame().first = true;
          int64_t column = block * call.lanes;
          do {
            const int64_t at = row * call.columns + column;
            const bool in_place = row_length >= long_row && stage.sums.empty();  // sums have one order for all layouts
            const int64_t left = in_place ? call.elements.left_of_row(at) : last - column;
            const int64_t columns = std::min(left, last - column);
            worker.run_elements(stage, at, columns, column);
            worker.frame().first = false;
            column += columns;
          } while (column < last);
          partials.keep(worker, block);
        }
      });
      partials.combine(whole);
    }
    if (call.program.has_rows) whole.leave_rows();
  }
}

bool lies_across(const Call& call) {
  const size_t count = call.program.inputs.size() + call.program.outputs.size();
  for (size_t k = 0; k < count; ++k) {
    if (call.elements.lies_across(k)) return true;
  }
  return false;
}

// Panels need rows that each belong to one thread. Without reductions the rows are those of the innermost axis.
void use_panels(Call& call, bool by_rows) {
  const int64_t row = call.elements.row();
  if (call.program.has_rows) {
    if (by_rows && row == call.columns) call.panel_columns = call.columns;
  } else if (call.columns / row >= TransposedPanels::most_rows * torch_threads()) {
    call.row_count = call.columns / row;
    call.columns = row;
    call.panel_columns = std::min(row, panel_columns);
  }
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

int64_t lanes(const Program& program, const Schedule& schedule) {
  const bool reduces = std::any_of(schedule.stages.begin(), schedule.stages.end(), [](const Stage& stage) { return !stage.sums.empty(); });
  if (reduces) return program::reduction_block;
  const int64_t streams = 4 * static_cast<int64_t>(program.inputs.size() + program.outputs.size());
  return std::clamp(cache / std::max<int64_t>(1, schedule.block_bytes + streams) / 64 * 64, fewest, most_elements);
}

int64_t cost_of_element(const Program& program, const Schedule& schedule) {
  return schedule.cost + per_tensor * static_cast<int64_t>(program.inputs.size() + program.outputs.size());
}

int64_t grain(const Program& program, const Schedule& schedule) {
  return std::max<int64_t>(1, share / cost_of_element(program, schedule));
}

bool threads_share_rows(const Program& program, int64_t rows, int64_t columns) {
  const bool has_column_sums = std::any_of(program.outputs.begin(), program.outputs.end(),
                                           [](const auto& output) { return output.level == Level::column; });
  const int64_t shares = has_column_sums ? ColumnSums::chunks_of(rows) : rows;
  return shares < torch_threads() && columns >= long_columns;
}

void run(const Program& program, const Schedule& schedule, const std::vector<int64_t>& sizes,
         const program::Tensor* inputs, const program::Tensor* outputs) {
  const std::vector<int64_t> outer(sizes.begin(), sizes.begin() + program.outer);
  Call call{program,
            schedule,
            inputs,
            outputs,
            Space(sizes, strides_of(program, sizes, inputs, outputs, Level::element)),
            Space(outer, strides_of(program, sizes, inputs, outputs, Level::row)),
            1,
            1,
            0};
  if (program.has_rows) call.row_count = call.rows.numel();
  for (size_t a = program.outer; a < sizes.size(); ++a) call.columns *= sizes[a];
  call.lanes = lanes(program, schedule);
  if (!schedule.once.empty()) Worker(call, nullptr).run_once();
  ColumnSums sums(program, schedule, sizes, outputs);
  if (call.row_count == 0) return sums.finish();
  if (call.columns == 0 && !program.has_rows) return;
  const bool by_rows = program.has_rows && !threads_share_rows(program, call.row_count, call.columns);
  if (lies_across(call)) use_panels(call, by_rows);
  by_rows || call.panel_columns > 0 ? run_by_rows(call, sums) : run_by_columns(call, sums);
  sums.finish();
}

}  // namespace fourfold::cpu
