// The order in which the CPU computes a program: stages of primitives, and the slots that they read and write.
//
// A stage passes once over a row's columns. A reduction's result is known after its stage, so values that depend on it are
// computed in a later stage. A value that several stages read is recomputed where that is cheap, else materialized for the row.
#pragma once

#include <cstdint>
#include <vector>

#include "cpu/kernels/primitives.h"
#include "program/program.h"

namespace fourfold::cpu {

// Where a slot's memory comes from.
enum class Storage : uint8_t {
  input,         // a tensor's
  output,        // likewise
  number,        // 8 bytes: one value for the whole call
  row,           // 8 bytes for each row of a block
  sum,           // likewise: the partial result of a reduction over a thread's part of the columns
  block,         // an element for each of a block
  materialized,  // an element for each column of the row, or of a block's rows
  column_sum,    // a float64 for each column, to which rows are added
};

struct SlotPlan {
  Storage storage;
  int64_t size;  // of an element
};

struct Step {
  Instruction instruction;
  bool expands = false;  // a row's value: where a block is of one row, the value itself
};

struct Stage {
  std::vector<Step> rows;           // for each row of a block, first
  std::vector<Step> elements;       // then for its elements
  std::vector<int> inputs;          // the tensors of elements that it reads
  std::vector<int> outputs;         // and writes
  std::vector<uint16_t> sums;       // the slots of its reductions
  std::vector<Primitive*> combine;  // of each, two parts into one
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
  std::vector<Given> given;         // numbers that come with a call
  std::vector<Step> numbers;        // what is computed once for each thread
  std::vector<Step> once;           // tensors that hold one number
  std::vector<Stage> stages;
  std::vector<int> row_inputs;      // the tensors of rows
  std::vector<int> row_outputs;
  std::vector<ColumnSum> column_sums;
  int64_t block_bytes = 0;          // of an element of every block slot together
  int cost = 0;                     // of an element, in additions
};

// The slots of inputs come first, then those of outputs.
Schedule schedule(const program::Program& program);

}  // namespace fourfold::cpu
