// Parses and checks programs. The grammar, one statement per line:
//
//   fourfold program 1
//   axes batch=x.0 | hidden=x.1                      each axis with its size: an input's dimension, or a number
//   x: float32 = input bfloat16 [batch hidden]       each dimension is an axis, merged axes a*b, or 1
//   z: float32 = input float32 [batch+2 @3]          a part of a dimension: an axis from index 2 on; index 3
//   m: float32 = amax x
//   d: float32 = sub x m
//   k: float32 = number                              a scalar argument
//   n: float32 = columns                             the number of columns
//   c: float32 = constant 0.5
//   y: float32 = mul d c
//   output y bfloat16 [batch hidden] order [0 1]     order: the dimensions by decreasing stride
//   column_sum d float32 [hidden]                    the sum of each column over all rows
//   output [y d] float32 [batch hidden] join 1       one tensor: equal parts concatenated along dimension 1
#include <algorithm>
#include <unordered_map>
#include <utility>

#include "program/lines.h"
#include "program/program.h"

namespace fourfold::program {
namespace {

constexpr size_t most_values = 4096;
constexpr size_t most_tensors = 256;  // inputs, and likewise outputs
constexpr int64_t most_start = int64_t{1} << 48;

class Parser : private Lines {
 public:
  explicit Parser(std::string_view text) : Lines(text) {}

  Program parse() {
    if (next_line() != Words{"fourfold", "program", "1"}) refuse("expected 'fourfold program 1'");
    parse_axes(next_line());
    while (!at_end()) {
      const Words words = next_line();
      if (words.empty()) continue;
      words[0] == "output" ? parse_output(words) : words[0] == "column_sum" ? parse_column_sum(words) : parse_value(words);
    }
    resolve_axes();
    if (program_.outputs.empty()) refuse("expected an output, and there is none");
    return std::move(program_);
  }

 private:
  Type type(std::string_view word) const {
    const auto* const found = std::find_if(std::begin(kinds), std::end(kinds), [&](Kind one) { return word == fourfold::describe(one).name; });
    expect(found != std::end(kinds), "boolean, int32, int64, float32 or float64", word);
    return type_of(*found);
  }

  Kind kind(std::string_view word) const {
    const auto* const found = std::find_if(std::begin(dtypes), std::end(dtypes), [&](const Dtype& one) { return word == one.name; });
    expect(found != std::end(dtypes), "a dtype, such as float32", word);
    return static_cast<Kind>(found - std::begin(dtypes));
  }

  // axes a=x.0 b=7 | c=x.1
  void parse_axes(const Words& words) {
    if (words.empty() || words[0] != "axes") refuse("expected 'axes'");
    for (size_t k = 1; k < words.size(); ++k) {
      if (words[k] == "|") {
        expect(!program_.has_rows, "one |", words[k]);
        program_.has_rows = true;
        program_.outer = static_cast<int>(program_.axes.size());
        continue;
      }
      const size_t equals = words[k].find('=');
      expect(equals != std::string_view::npos, "an axis, such as a=x.0", words[k]);
      Axis axis;
      axis.name = name(words[k].substr(0, equals));
      expect(axis_called(axis.name) < 0, "each axis once", axis.name);
      expect(program_.axes.size() < most_axes, "at most 24 axes", axis.name);
      sizes_.push_back(words[k].substr(equals + 1));
      program_.axes.push_back(std::move(axis));
    }
    axes_line_ = line_;
  }

  int axis_called(std::string_view called) const {
    for (size_t k = 0; k < program_.axes.size(); ++k) {
      if (program_.axes[k].name == called) return static_cast<int>(k);
    }
    return -1;
  }

  // Called after all inputs are parsed.
  void resolve_axes() {
    line_ = axes_line_;
    for (size_t k = 0; k < sizes_.size(); ++k) {
      Axis& axis = program_.axes[k];
      const size_t dot = sizes_[k].find('.');
      if (dot == std::string_view::npos) {
        axis.size = integer(sizes_[k], "a size");
        expect(axis.size >= 0, "a size of at least 0", sizes_[k]);
        continue;
      }
      const std::string_view called = sizes_[k].substr(0, dot);
      const auto found = std::find_if(program_.inputs.begin(), program_.inputs.end(),
                                      [&](const Input& input) { return input.name == called; });
      expect(found != program_.inputs.end(), "an input's dimension", sizes_[k]);
      const int64_t dim = integer(sizes_[k].substr(dot + 1), "an input's dimension");
      axis.input = static_cast<int>(found - program_.inputs.begin());
      expect(dim >= 0 && dim < static_cast<int64_t>(found->dims.size()) && found->dims[dim] == Dim{static_cast<int>(k)} &&
                 found->starts[dim] == Input::whole,
             "a dimension that runs along this axis alone", sizes_[k]);
      axis.dim = static_cast<int>(dim);
    }
  }

  // Parses [a b*c 1] at words[at] and moves `at` past it. starts: of an input, where parts of dimensions begin.
  std::vector<Dim> dims(const Words& words, size_t& at, std::vector<int64_t>* starts = nullptr) {
    std::vector<Dim> result;
    std::vector<bool> used(program_.axes.size());
    for (std::string_view word : bracketed(words, at)) {
      Dim dim;
      if (starts != nullptr) starts->push_back(start_of(word));
      while (word != "1") {
        const size_t star = std::min(word.find('*'), word.size());
        const int axis = axis_called(word.substr(0, star));
        expect(axis >= 0 && !used[axis], "an axis that this tensor does not have yet", word);
        used[axis] = true;
        dim.push_back(axis);
        if (star == word.size()) break;
        word.remove_prefix(star + 1);
      }
      result.push_back(std::move(dim));
    }
    return result;
  }

  // Leaves the axis of a+2, or 1 of @3; whole if the word is no part.
  int64_t start_of(std::string_view& word) const {
    const std::string_view given = word;
    const size_t plus = word.find_first_of("+@");
    if (plus == std::string_view::npos) return Input::whole;
    const bool is_index = word[plus] == '@';
    const int64_t start = integer(word.substr(plus + 1), "where a part of a dimension begins");
    const bool is_valid = start >= 0 && start < most_start && (is_index ? plus == 0 : word.find('*') == std::string_view::npos);
    expect(is_valid, "a part of a dimension, such as a+2 or @3", given);
    word = is_index ? "1" : word.substr(0, plus);
    return start;
  }

  Level level_of(const std::vector<Dim>& dims) const {
    Level level = Level::number;
    for (const Dim& dim : dims) {
      for (const int axis : dim) {
        level = std::max(level, !program_.has_rows || axis >= program_.outer ? Level::element : Level::row);
      }
    }
    return level;
  }

  // name: type = …
  void parse_value(const Words& words) {
    expect(words.size() >= 4 && words[0].back() == ':' && words[2] == "=", "name: type = …", words[0]);
    Value value;
    value.name = name(words[0].substr(0, words[0].size() - 1));
    value.type = type(words[1]);
    expect(values_.count(value.name) == 0, "a name that is not taken", value.name);
    expect(program_.values.size() < most_values, "at most 4096 values", value.name);
    if (words[3] == "input" || words[3] == "number") {
      parse_input(words, value);
    } else if (words[3] == "columns") {
      expect(program_.has_rows && words.size() == 4, "columns in a program that has rows, alone", words.back());
      expect(value.type != Type::boolean, "the number of columns as a number", words[1]);
      value.source = Source::columns;
    } else if (words[3] == "constant") {
      expect(words.size() == 5, "one constant", words.back());
      value.source = Source::constant;
      parse_constant(words[4], value);
    } else {
      parse_operation(words, value);
    }
    values_[value.name] = static_cast<int>(program_.values.size());
    program_.values.push_back(std::move(value));
  }

  void parse_input(const Words& words, Value& value) {
    Input input;
    input.name = value.name;
    input.is_number = words[3] == "number";
    if (input.is_number) {
      expect(words.size() == 4, "number alone", words.back());
      input.kind = kind_of(value.type);
    } else {
      expect(words.size() >= 6, "an input's dtype and dimensions", words.back());
      input.kind = kind(words[4]);
      size_t at = 5;
      input.dims = dims(words, at, &input.starts);
      expect(at == words.size(), "nothing behind ]", words.back());
      expect(type_of(input.kind) == value.type, name_of(type_of(input.kind)), words[1]);
    }
    expect(program_.inputs.size() < most_tensors, "at most 256 inputs", value.name);
    input.level = value.level = level_of(input.dims);
    value.source = Source::input;
    value.operand[0] = static_cast<int>(program_.inputs.size());
    program_.inputs.push_back(std::move(input));
  }

  void parse_constant(std::string_view word, Value& value) const {
    if (value.type == Type::boolean) {
      expect(word == "true" || word == "false", "true or false", word);
      value.integer = word == "true";
    } else if (is_integer(value.type)) {
      value.integer = integer(word, "an integer");
      expect(value.type == Type::int64 || value.integer == static_cast<int32_t>(value.integer), "32 bits", word);
    } else {
      value.floating = floating(word);
    }
  }

  void parse_operation(const Words& words, Value& value) {
    const auto* const found = std::find_if(std::begin(descriptions), std::end(descriptions),
                                           [&](const Description& one) { return words[3] == one.name; });
    expect(found != std::end(descriptions), "an operation", words[3]);
    value.op = static_cast<Operation>(found - std::begin(descriptions));
    expect(static_cast<int>(words.size()) == 4 + found->operands,
           std::to_string(found->operands) + (found->operands == 1 ? " operand of " : " operands of ") + found->name,
           words.back());
    for (int k = 0; k < found->operands; ++k) {
      const auto operand = values_.find(std::string(words[4 + k]));
      expect(operand != values_.end(), "a value that stands above", words[4 + k]);
      value.operand[k] = operand->second;
      value.level = std::max(value.level, program_.values[operand->second].level);
      value.stage = std::max(value.stage, program_.values[operand->second].stage);
    }
    check_types(*found, words, value);
    if (is_reduction(value.op)) {
      expect(program_.has_rows, "a reduction in a program that has rows only", words[3]);
      value.level = Level::row;
      ++value.stage;
    }
  }

  void check_types(const Description& op, const Words& words, const Value& value) const {
    const auto type_at = [&](int k) { return program_.values[value.operand[k]].type; };
    int first = 0;
    if (op.rule == Rule::selection) {
      expect(type_at(0) == Type::boolean, "a boolean as where's first operand", words[4]);
      first = 1;
    }
    expect(takes(op.rule, type_at(first)), std::string("a type that ") + op.name + " takes", words[4 + first]);
    for (int k = first + 1; k < op.operands; ++k) {
      expect(type_at(k) == type_at(first), "operands of one type", words[4 + k]);
    }
    const Type result = op.rule == Rule::comparison ? Type::boolean
                        : op.rule == Rule::conversion ? type(std::string_view(op.name).substr(3))
                        : op.rule == Rule::widening   ? Type::float64 : type_at(first);
    expect(value.type == result, name_of(result), words[1]);
  }

  // output y bfloat16 [a b c] order [0 1 2]
  // output [y z] bfloat16 [a b c] join 2 order [0 1 2]
  void parse_output(const Words& words) {
    expect(words.size() >= 4, "an output's value, dtype and dimensions", words.back());
    size_t at = 1;
    const bool joins = words[1][0] == '[';
    const Words parts = joins ? bracketed(words, at) : Words{words[at++]};
    if (parts.empty() || at >= words.size()) refuse("expected an output's value, dtype and dimensions");
    Output output;
    const std::string_view dtype = words[at++];
    output.kind = kind(dtype);
    output.dims = dims(words, at);
    output.level = level_of(output.dims);
    // If all axes are columns, a value for each row has no dimensions.
    if (output.level == Level::number && program_.has_rows && program_.outer == 0) output.level = Level::row;
    check_coverage(output, parts[0]);
    if (joins) parse_join(words, at, output);
    for (size_t k = 0; k < output.dims.size(); ++k) output.order.push_back(static_cast<int>(k));
    if (at < words.size()) parse_order(words, at, output);
    output.parts = static_cast<int>(parts.size());
    for (const std::string_view part : parts) {
      const auto value = values_.find(std::string(part));
      expect(value != values_.end(), "a value that stands above", part);
      const Value& source = program_.values[output.value = value->second];
      expect(type_of(output.kind) == source.type, "a dtype of the value's type", dtype);
      expect(source.level <= output.level, "the dimensions that the value differs along", part);
      expect(program_.outputs.size() < most_tensors, "at most 256 outputs", part);
      program_.outputs.push_back(output);
      ++output.part;
    }
  }

  // column_sum y bfloat16 [b c] order [0 1]
  void parse_column_sum(const Words& words) {
    expect(words.size() >= 4, "a column sum's value, dtype and dimensions", words.back());
    const auto value = values_.find(std::string(words[1]));
    expect(value != values_.end(), "a value that stands above", words[1]);
    const Value& source = program_.values[value->second];
    expect(program_.has_rows, "a column sum in a program that has rows only", words[0]);
    Output output;
    output.value = value->second;
    output.kind = kind(words[2]);
    output.level = Level::column;
    expect(type_of(output.kind) == source.type && is_floating(source.type), "a floating dtype of the value's type", words[2]);
    size_t at = 3;
    output.dims = dims(words, at);
    check_coverage(output, words[1]);
    for (size_t k = 0; k < output.dims.size(); ++k) output.order.push_back(static_cast<int>(k));
    if (at < words.size()) parse_order(words, at, output);
    expect(program_.outputs.size() < most_tensors, "at most 256 outputs", words[1]);
    program_.outputs.push_back(std::move(output));
  }

  void parse_join(const Words& words, size_t& at, Output& output) const {
    if (at + 1 >= words.size() || words[at] != "join") refuse("expected join, and the dimension that the parts follow along");
    const int64_t dim = integer(words[at + 1], "a dimension");
    expect(dim >= 0 && dim < static_cast<int64_t>(output.dims.size()), "a dimension that the parts have", words[at + 1]);
    output.join = static_cast<int>(dim);
    at += 2;
  }

  // An output must have all axes of its level, so that every element is written.
  void check_coverage(const Output& output, std::string_view called) const {
    size_t axes = 0;
    bool of_rows = false;
    for (const Dim& dim : output.dims) {
      axes += dim.size();
      for (const int axis : dim) of_rows = of_rows || axis < program_.outer;
    }
    const size_t all = program_.axes.size();
    if (output.level == Level::column) {
      expect(!of_rows && axes == all - program_.outer, "all the axes of the columns", called);
      return;
    }
    const size_t wanted = output.level == Level::element ? all : output.level == Level::row ? program_.outer : 0;
    expect(axes == wanted, "all the axes, or all that number the rows, or none", called);
  }

  void parse_order(const Words& words, size_t& at, Output& output) const {
    expect(words[at] == "order", "order", words[at]);
    const Words given = bracketed(words, ++at);
    expect(at == words.size() && given.size() == output.dims.size(), "each dimension once", words.back());
    std::vector<bool> used(given.size());
    for (size_t k = 0; k < given.size(); ++k) {
      const int64_t dim = integer(given[k], "a dimension");
      expect(dim >= 0 && dim < static_cast<int64_t>(given.size()) && !used[dim], "each dimension once", given[k]);
      used[dim] = true;
      output.order[k] = static_cast<int>(dim);
    }
  }

  int axes_line_ = 0;
  Program program_;
  std::vector<std::string_view> sizes_;  // of each axis, unparsed
  std::unordered_map<std::string, int> values_;
};

}  // namespace

Program parse(std::string_view text) { return Parser(text).parse(); }

}  // namespace fourfold::program
