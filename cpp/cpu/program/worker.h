// One thread's share of a call: the primitives of each stage, block by block.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

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
  Space elements;  // each tensor by its slot
  Space rows;
  int64_t row_count;
  int64_t columns;
  int64_t lanes;  // elements of a block
  int64_t panel_columns = 0;  // none: no panels

  const program::Tensor& tensor(int slot) const {
    const int count = static_cast<int>(program.inputs.size());
    return slot < count ? inputs[slot] : outputs[slot - count];
  }
  int64_t rows_of_panel() const { return panel_columns == 0 ? rows_of_block() : std::max(rows_of_block(), Panels::most_rows); }
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

  // As many rows as panels have, of these columns, or all where there are no panels.
  void enter_panels(int64_t row, int64_t rows, int64_t column, int64_t columns);
  void leave_panels();

  // Column sums are added here from now on, `columns` of each output.
  void add_to(double* sums);

  void enter_rows(int64_t first, int64_t count);
  void run_rows(const Stage& stage);
  void leave_rows();
  // Some columns of the rows that were entered; `offset`, how many of them have been before.
  void run_elements(const Stage& stage, int64_t at, int64_t columns, int64_t offset);

 private:
  struct Free {
    void operator()(char* memory) const;
  };

  // What panels may hold: nothing, where a call has none.
  std::vector<PanelTensor> tensors_across() const;
  bool find_in_panels(int slot, int64_t at);

  // Rows without columns, whose tensors may have no memory to read.
  void run_sums(const Stage& stage);
  void expand(const Instruction& made, int64_t count);
  int output_slot(int output) const;

  // Assigns memory of the worker's own to slots.
  void lay_out(const Worker* shared);
  bool needs_scratch(int slot) const;
  // Whether an output's memory is that of an input that its stage reads again behind the first step that writes it.
  bool overwrites(int output) const;

  // What is the same for all elements.
  void start();
  void give(const Given& given);

  // Where the next block lies: operations that take long fetch it meanwhile. Measured on silu(x) * y and its gradient at a
  // million elements: 8 to 14 % of the time; on Adam's update, shared out to all of them, 17 %.
  void look_ahead(const Stage& stage, int64_t count);
  void bring(int slot, const Space& space, int64_t at, int64_t count);
  void make_room(int slot, const Space& space, int64_t at, int64_t count);
  void put_back(int slot, const Space& space, int64_t at, int64_t count);

  const Call& call_;
  const Schedule& plan_;
  std::vector<Slot> slots_;
  std::vector<char*> own_;
  std::vector<char*> scratch_;  // for the elements of a tensor that don't lie side by side, or overwrite an input
  std::vector<bool> overwrites_;
  std::vector<int> materialized_;
  Panels panels_;
  std::unique_ptr<char, Free> memory_;
  Frame frame_{};
  int64_t first_row_ = 0;
};

}  // namespace fourfold::cpu
