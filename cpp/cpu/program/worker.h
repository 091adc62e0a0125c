// One thread's share of a call: runs the primitives of each stage, block by block.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "cpu/memory.h"
#include "cpu/program/panels.h"
#include "cpu/program/schedule.h"
#include "cpu/program/space.h"
#include "program/layout.h"

namespace fourfold::cpu {

struct Call {
  const fourfold::program::Program& program;
  const Schedule& schedule;
  const program::Tensor* inputs;
  const program::Tensor* outputs;
  Space elements;  // tensors are numbered by slot
  Space rows;
  int64_t row_count;
  int64_t columns;
  int64_t lanes;  // elements of a block
  int64_t panel_columns = 0;  // 0: no panels

  const program::Tensor& tensor(int slot) const {
    const int count = static_cast<int>(program.inputs.size());
    return slot < count ? inputs[slot] : outputs[slot - count];
  }
  int64_t rows_of_panel() const {
    return panel_columns == 0 ? rows_of_block() : std::max(rows_of_block(), TransposedPanels::most_rows);
  }
  int64_t rows_of_block() const { return columns > lanes / 2 ? 1 : std::max<int64_t>(1, lanes / std::max<int64_t>(1, columns)); }
};

// One thread's slots. Slots of rows and materialized values may belong to another worker on the same row.
class Worker {
 public:
  Worker(const Call& call, const Worker* shared);

  Frame& frame() { return frame_; }
  Slot& slot(int k) { return slots_[k]; }

  // Stores the outputs that have one value for the whole call.
  void run_once();

  // Enters the panels of these rows and columns, if there are panels.
  void enter_panels(int64_t row, int64_t rows, int64_t column, int64_t columns);
  void leave_panels();

  // Sets the memory for column sums, `columns` for each output.
  void add_to(double* sums);

  void enter_rows(int64_t first, int64_t count);
  void run_rows(const Stage& stage);
  void leave_rows();
  // Runs a stage on some columns of the entered rows. offset: the number of columns before them.
  void run_elements(const Stage& stage, int64_t at, int64_t columns, int64_t offset);

 private:
  // The tensors that panels may hold; empty without panels.
  std::vector<PanelTensor> tensors_across() const;
  bool find_in_panels(int slot, int64_t at);

  // Runs only reductions, for rows without columns, whose tensors may have no memory.
  void run_sums(const Stage& stage);
  void expand(const Instruction& made, int64_t count);
  int output_slot(int output) const;

  // Allocates the worker's memory and assigns it to slots.
  void lay_out(const Worker* shared);
  bool needs_scratch(int slot) const;
  // Whether an output shares the memory of an input that its stage reads after the first step that writes it.
  bool overwrites(int output) const;

  // Computes all scalars.
  void start();
  void give(const Given& given);

  // Sets the addresses of the next block, which expensive operations prefetch. Measured on silu(x) * y and its gradient
  // at a million elements, this saves 8 to 14 % of the time; on Adam's update, with prefetches spread over all such
  // operations, 17 %.
  void look_ahead(const Stage& stage, int64_t count);
  void bring(int slot, const Space& space, int64_t at, int64_t count);
  void make_room(int slot, const Space& space, int64_t at, int64_t count);
  void put_back(int slot, const Space& space, int64_t at, int64_t count);

  const Call& call_;
  const Schedule& plan_;
  std::vector<Slot> slots_;
  std::vector<char*> own_;
  std::vector<char*> scratch_;  // for tensors that aren't contiguous, or that overwrite an input
  std::vector<bool> overwrites_;
  std::vector<int> materialized_;
  TransposedPanels panels_;
  std::unique_ptr<char, Release> memory_;
  Frame frame_{};
  int64_t first_row_ = 0;
};

}  // namespace fourfold::cpu
