// How the interpreter runs a program: in stages of steps on places in memory.
//
// A stage passes once over a row's columns. The result of a reduction is known after its stage, so values that depend on
// it are computed in a later stage. A value that a later stage reads is kept for the row.
#pragma once

#include <cstdint>
#include <vector>

#include "cpu/kernels/functions.h"
#include "program/program.h"

namespace fourfold::cpu {

enum class Memory : uint8_t {
  tensor,      // an input or an output
  number,      // one value for the whole call
  row,         // one value for each row of a block
  total,       // likewise: a reduction so far
  broadcast,   // a row's value for each element of a block; of a block of one row, once
  block,       // one value for each element of a block
  kept,        // one value for each column of the row, or of a block's rows
  column_sum,  // a float64 accumulator for each column
};

struct Place {
  Memory memory;
  int64_t size;  // bytes of an element
};

// One operation for all elements of a block, or for its rows.
struct Step {
  enum class Kind : uint8_t { map, reduce, add_to_columns };
  Kind kind = Kind::map;
  program::Type type = program::Type::float32;  // of the operands
  int to = 0;
  int from[3] = {0, 0, 0};
  ArrayFunction* map = nullptr;
  Reduction reduction = {};
};

struct Broadcast {
  int from;
  int to;
};

struct Stage {
  std::vector<Step> rows;             // run first, for each row of a block
  std::vector<Broadcast> broadcasts;  // then these, once for all blocks of a row
  std::vector<Step> elements;         // then these, for each block of the row
  std::vector<int> inputs;            // the element-level tensors that it reads
  std::vector<int> outputs;           // likewise writes
};

// A number that the call passes, or the number of columns (input -1).
struct Given {
  int place;
  int input;
  program::Type type;
};

struct Constant {
  int place;
  uint64_t bits;
};

struct ColumnSum {
  int place;
  int output;
};

struct Schedule {
  std::vector<Place> places;  // those of inputs, of outputs, and others
  std::vector<Constant> constants;
  std::vector<Given> given;
  std::vector<Step> numbers;  // run once by each thread
  std::vector<Step> once;     // stores outputs of one number
  std::vector<Stage> stages;
  std::vector<int> row_inputs;  // the row-level tensors
  std::vector<int> row_outputs;
  std::vector<ColumnSum> column_sums;
  int64_t block = 0;  // elements that are computed together
  int64_t cost = 0;   // of an element with its memory accesses, in additions
};

Schedule schedule_of(const program::Program& program);

}  // namespace fourfold::cpu
