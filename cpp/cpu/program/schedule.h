// The order in which the CPU computes a program: stages of primitives, and the slots that they read and write.
//
// A stage passes once over a row's columns. What comes of a reduction is known after its stage, so a value that needs it is
// computed in a later one. A value that stages share is computed again where that is cheap, and otherwise kept for the row.
#pragma once

#include <cstdint>
#include <vector>

#include "cpu/kernels/primitives.h"
#include "program/program.h"

namespace fourfold::cpu {

// Where a slot's memory comes from.
enum class Home : uint8_t {
  input,     // a tensor's
  output,    // likewise
  number,    // 8 bytes: what is the same for the whole call
  row,       // 8 bytes for each row of a block
  sum,       // likewise: what a thread's own part of the columns comes to
  block,     // an element for each of a block
  kept,      // an element for each column of the row, or of a block's rows
  total,     // a float64 for each column, which rows are added to
};

struct SlotPlan {
  Home home;
  int64_t size;  // of an element
  int place;     // among those of its home
};

struct Step {
  Instruction instruction;
  bool expands = false;  // a row's value: where a block is of one row, the value itself
  int value = -1;        // what it computes, and the sine's cosine or the cosine's sine that comes with it
  int twin = -1;
  int inner = -1;        // what is computed on the way, by a primitive of two operations
  int output = -1;       // or what it stores `value` into
  bool totals = false;   // adds `value` to its columns
};

struct Stage {
  std::vector<Step> rows;       // for each row of a block, first
  std::vector<Step> elements;   // then for its elements
  std::vector<int> inputs;      // the tensors of elements that it reads
  std::vector<int> outputs;     // and writes
  std::vector<uint16_t> sums;   // the slots of its reductions
  std::vector<Primitive*> combine;  // of each, two parts into one
  int dear = 0;                     // how many steps take long
  StageFunction* compiled = nullptr;  // what is called in the place of `elements`
};

struct Constant {
  uint16_t slot;
  uint64_t bits;
};

struct Total {
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
  std::vector<int> slot_of;         // each value's that is known before a stage; a row's for each of its columns; -1
  std::vector<Constant> constants;
  std::vector<Given> given;         // numbers that come with a call
  std::vector<Step> numbers;        // what is computed once for each thread
  std::vector<Step> once;           // tensors that hold one number
  std::vector<Stage> stages;
  std::vector<int> row_inputs;      // the tensors of rows
  std::vector<int> row_outputs;
  std::vector<Total> totals;
  int64_t block_bytes = 0;          // of an element of every block slot together
  int cost = 0;                     // of an element, in additions
};

// The slots of inputs come first, then those of outputs.
Schedule schedule(const program::Program& program);

}  // namespace fourfold::cpu
