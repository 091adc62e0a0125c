// The schedule of the CPU interpreter: stages of primitives, and the slots that they read and write.
//
// A stage passes once over a row's columns. A reduction's result is known after its stage, so values that depend on it are
// computed in a later stage. A value that several stages read is recomputed if that is cheap, otherwise materialized
// for the row.
#pragma once

#include <cstdint>
#include <vector>

#include "cpu/kernels/primitives.h"
#include "program/program.h"

namespace fourfold::cpu {

// Where a slot's memory comes from.
enum class Storage : uint8_t {
  input,         // an input tensor
  output,        // an output tensor
  number,        // 8 bytes: one value for the whole call
  row,           // 8 bytes for each row of a block
  sum,           // likewise: the partial result of a reduction over a thread's part of the columns
  block,         // one value for each element of a block
  materialized,  // one value for each column of the row, or of a block's rows
  column_sum,    // a float64 accumulator for each column
};

struct SlotPlan {
  Storage storage;
  int64_t size;  // bytes of an element
};

struct Step {
  Instruction instruction;
  bool expands = false;  // broadcasts a row's value; in a block of one row it only aliases it
};

struct Stage {
  std::vector<Step> rows;           // run first, for each row of a block
  std::vector<Step> elements;       // run then, for the block's elements
  std::vector<int> inputs;          // the element-level tensors that it reads
  std::vector<int> outputs;         // likewise writes
  std::vector<uint16_t> sums;       // the slots of its reductions
  std::vector<Primitive*> combine;  // for each reduction, combines two partial results
  int expensive = 0;                // the number of expensive steps
};

struct Constant {
  uint16_t slot;
  uint64_t bits;
};

struct ColumnSum {
  uint16_t slot;
  int output;
};

struct Given {
  uint16_t slot;
  int input;  // or -1 for the number of columns
  program::Type type;
};

struct Schedule {
  std::vector<SlotPlan> slots;
  std::vector<Constant> constants;
  std::vector<Given> given;         // scalar arguments of a call
  std::vector<Step> numbers;        // scalar computations, run once by each thread
  std::vector<Step> once;           // stores of scalar outputs, run once
  std::vector<Stage> stages;
  std::vector<int> row_inputs;      // the row-level tensors
  std::vector<int> row_outputs;
  std::vector<ColumnSum> column_sums;
  int64_t block_bytes = 0;          // bytes of one element in all block slots together
  int cost = 0;                     // of an element, in additions
};

// The first slots are those of inputs, then those of outputs.
Schedule schedule(const program::Program& program);

}  // namespace fourfold::cpu
