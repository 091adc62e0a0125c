// A pointwise program: elementwise operations over one iteration space, in order of execution, and reductions along its
// columns. It is independent of the backend. cpp/program/parse.cpp documents the grammar.
//
// The iteration space has axes. In a program with rows, the last axes are the columns, along which reductions run, and the
// first ones are the rows. A value exists for each element, for each row (the same for all columns), or once per call.
// An output may be the sum of each column over all rows.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ops/kind.h"
#include "program/operations.h"

namespace fourfold::program {

enum class Level : uint8_t { number, row, element, column };  // column: an output that sums over the rows

inline constexpr size_t most_axes = 24;  // of a program

// The axes that one dimension of a tensor merges, outermost first; none for a dimension of size 1.
using Dim = std::vector<int>;

// An axis. Its size is that of an input's dimension, or, if input < 0, `size`.
struct Axis {
  std::string name;
  int input = -1;
  int dim = 0;
  int64_t size = 0;
};

struct Input {
  std::string name;
  Kind kind = Kind::float32;
  bool is_number = false;  // passed with the call as a scalar, not as a tensor
  std::vector<Dim> dims;
  std::vector<int64_t> starts;  // for each dimension the first index that the program reads, of a part; else whole
  Level level = Level::number;

  static constexpr int64_t whole = -1;
  bool is_part() const {
    return std::any_of(starts.begin(), starts.end(), [](int64_t start) { return start != whole; });
  }
};

// Where a value comes from.
enum class Source : uint8_t { input, constant, columns, operation };

struct Value {
  std::string name;
  Type type = Type::float32;
  Level level = Level::number;
  int stage = 0;  // the length of the longest chain of reductions that it depends on
  Source source = Source::operation;
  Operation op = Operation::add;
  int operand[3] = {-1, -1, -1};  // earlier values; for an input, its index among the inputs
  double floating = 0;            // constants: the value
  int64_t integer = 0;
};

// A tensor that a call returns, or one of the equal parts that are concatenated to one.
struct Output {
  int value = 0;
  Kind kind = Kind::float32;
  std::vector<Dim> dims;   // of the part
  std::vector<int> order;  // the dimensions by decreasing stride
  Level level = Level::number;
  int join = -1;  // the dimension of the concatenation
  int part = 0;
  int parts = 1;
};

struct Program {
  std::vector<Axis> axes;
  int outer = 0;          // the number of row axes; 0 without rows
  bool has_rows = false;
  std::vector<Input> inputs;
  std::vector<Value> values;
  std::vector<Output> outputs;  // the parts of one tensor are adjacent
};

// Parses and checks a program. Throws std::invalid_argument with an error that names the line.
Program parse(std::string_view text);

}  // namespace fourfold::program
