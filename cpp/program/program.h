// A pointwise program: elementwise operations over one space of elements, in the order in which they are computed, and
// reductions along its columns. It names no backend. cpp/program/parse.cpp says how it is written.
//
// The space has axes. Where a program has rows, the last axes are its columns, which reductions run along, and the others
// number the rows. A value is an element's, a row's (the same for all columns), or a number for the whole call. An output
// may be for each column the sum over all rows.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ops/kind.h"
#include "program/operations.h"

namespace fourfold::program {

enum class Level : uint8_t { number, row, element, column };  // column: of outputs, which sum over the rows

// Which axes one dimension of a tensor runs along, outermost first; none for one of size 1.
using Dim = std::vector<int>;

// Where an axis' size is read: of an input's dimension, or given.
struct Axis {
  std::string name;
  int input = -1;
  int dim = 0;
  int64_t size = 0;
};

struct Input {
  std::string name;
  Kind kind = Kind::float32;
  bool is_number = false;  // given with the call by itself, not in a tensor
  std::vector<Dim> dims;
  Level level = Level::number;
};

// What a value is made of.
enum class Source : uint8_t { input, constant, columns, operation };

struct Value {
  std::string name;
  Type type = Type::float32;
  Level level = Level::number;
  Source source = Source::operation;
  Operation op = Operation::add;
  int operand[3] = {-1, -1, -1};  // values before this one; of an input its place among the inputs
  double floating = 0;            // a constant
  int64_t integer = 0;
};

// A tensor that a call gives, or one of the equal parts of it that lie behind each other along a dimension.
struct Output {
  int value = 0;
  Kind kind = Kind::float32;
  std::vector<Dim> dims;   // of the part
  std::vector<int> order;  // the dimensions by their strides, the longest first
  Level level = Level::number;
  int join = -1;  // the dimension
  int part = 0;
  int parts = 1;
};

struct Program {
  std::vector<Axis> axes;
  int outer = 0;          // how many of them number the rows; none where there are no rows
  bool has_rows = false;
  std::vector<Input> inputs;
  std::vector<Value> values;
  std::vector<Output> outputs;  // the parts of one tensor side by side
};

// What memory of this kind is computed in.
constexpr Type type_of(Kind kind) {
  switch (kind) {
    case Kind::boolean: return Type::boolean;
    case Kind::uint8:
    case Kind::int8:
    case Kind::int16:
    case Kind::int32: return Type::int32;
    case Kind::int64: return Type::int64;
    case Kind::float64: return Type::float64;
    default: return Type::float32;
  }
}

// The one checker: whatever is not a program is refused in a sentence, std::invalid_argument, that names the line.
Program parse(std::string_view text);

}  // namespace fourfold::program
