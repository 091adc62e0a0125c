// One thread's share of a call of the interpreter: its memory, and the stages' steps for a block.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "cpu/memory.h"
#include "cpu/program/schedule.h"
#include "cpu/program/space.h"
#include "program/layout.h"

namespace fourfold::cpu {

struct Invocation {
  const program::Program& program;
  const Schedule& schedule;
  const program::Tensor* inputs;
  const program::Tensor* outputs;
  Space elements;  // tensors are numbered by place
  Space rows;
  int64_t row_count = 1;
  int64_t columns = 1;

  // Blocks are some rows with all their columns, or some columns of one row.
  int64_t rows_of_block() const { return columns > schedule.block / 2 ? 1 : schedule.block / std::max<int64_t>(1, columns); }
  const program::Tensor& tensor(int place) const {
    const int count = static_cast<int>(program.inputs.size());
    return place < count ? inputs[place] : outputs[place - count];
  }
};

class Worker {
 public:
  // shared: the worker of the row whose columns threads share, and which has the row's values; or null.
  explicit Worker(const Invocation& of, const Worker* shared = nullptr);

  // Stores the outputs that have one value for the whole call.
  void run_once();
  // Sets the memory of column sums, as ColumnSums::begin() returns it, and the first row of their chunk.
  void add_to(double* sums, int64_t first_row);

  void enter_rows(int64_t first, int64_t count);
  // Computes the rows' values of a stage.
  void run_rows(const Stage& stage);
  void leave_rows();
  // Before the blocks of a stage.
  void broadcast(const Stage& stage);
  // Runs a stage on some columns of the entered rows. at: the first element; column: the number of columns before it.
  // starts: whether reductions start.
  void run_block(const Stage& stage, int64_t at, int64_t column, int64_t columns, bool starts);

  char* place(int k) const { return at_[k]; }

 private:
  void lay_out(const Worker* shared);
  void compute_numbers();
  void give(const Given& given);
  void run(const Step& step, int64_t count);
  void add_to_columns(const Step& step, int64_t columns);
  // Makes a tensor's elements contiguous, or makes room for them; put_back() copies them to the tensor.
  void bring(int place, const Space& space, int64_t at, int64_t count);
  void make_room(int place, const Space& space, int64_t at, int64_t count);
  void put_back(int place, const Space& space, int64_t at, int64_t count);
  bool overwrites_input(int place) const;

  const Invocation& of_;
  const Schedule& schedule_;
  std::vector<char*> at_;   // of each place, for the current block
  std::vector<char*> own_;  // memory of each place; of tensors, for elements that aren't contiguous
  std::unique_ptr<char, Release> memory_;
  int64_t first_row_ = 0;
  int64_t first_of_chunk_ = 0;
  int64_t rows_ = 1;
};

}  // namespace fourfold::cpu
