#include "cpu/program/emit.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <set>

#include "cpu/program/emitted_names.h"

namespace fourfold::cpu {
namespace {

using program::Level;
using program::Operation;
using program::Program;
using program::Source;
using program::Type;
using program::Value;

// Of blocks that a stage holds for its reductions, which lie on the stack.
constexpr int most_blocks = 32;

constexpr const char* type_name(Type type) {
  constexpr const char* names[program::types] = {"boolean", "int32", "int64", "float32", "float64"};
  return names[static_cast<int>(type)];
}

constexpr const char* memory_name(Kind kind) {
  switch (kind) {
    case Kind::boolean: return "bool";
    case Kind::uint8: return "uint8_t";
    case Kind::int8: return "int8_t";
    case Kind::int16: return "int16_t";
    case Kind::int32: return "int32_t";
    case Kind::int64: return "int64_t";
    case Kind::float16: return "Half";
    case Kind::bfloat16: return "BFloat16";
    case Kind::float32: return "float";
    default: return "double";
  }
}

constexpr const char* memory_name(Type type) {
  constexpr const char* names[program::types] = {"bool", "int32_t", "int64_t", "float", "double"};
  return names[static_cast<int>(type)];
}

constexpr const char* reduction_name(Operation op) {
  switch (op) {
    case Operation::sum: return "Sum";
    case Operation::prod: return "Prod";
    case Operation::amax: return "Amax";
    case Operation::amin: return "Amin";
    case Operation::all: return "All";
    default: return "Any";
  }
}

std::string spelled(const Value& constant) {
  if (constant.type == Type::boolean) return constant.integer != 0 ? "true" : "false";
  if (!program::is_floating(constant.type)) return std::to_string(constant.integer);
  char text[40];
  std::snprintf(text, sizeof text, constant.type == Type::float32 ? "%.9g" : "%.17g", constant.floating);
  return text;
}

// The function of one stage.
class StageWriter {
 public:
  StageWriter(const Program& program, const Schedule& schedule, const Stage& stage)
      : program_(program), schedule_(schedule), stage_(stage), names_(program) {}

  // Nothing where the stage computes nothing for elements, or can't be a function.
  std::string write(const std::string& name) {
    for (const Step& step : stage_.elements) {
      if (!step.expands) write_step(step);
    }
    if ((body_.empty() && reductions_.empty()) || blocks_ > most_blocks) return "";
    std::string loop;
    if (!body_.empty()) {
      loop = "  for (int64_t k = 0; k < count; k += lanes) {\n    const int64_t n = left(count, k);\n" +
             std::string(is_dear_ ? "    look_ahead(frame, k);\n" : "") + body_ + "  }\n";
    }
    return "void " + name + "(Frame& frame, int64_t count) {\n" + head_ + loop + reductions_ + "}\n";
  }

 private:
  const Value& value(int v) const { return program_.values[v]; }
  bool is_sum(int v) const { return value(v).source == Source::operation && program::is_reduction(value(v).op); }
  static std::string slot(int number) { return "frame.slots[" + std::to_string(number) + "]"; }

  void write_step(const Step& step) {
    const int v = step.value;
    if (step.totals) {
      write_total(step);
    } else if (step.output >= 0) {
      put(step.instruction.out, v);
    } else if (is_sum(v)) {
      write_reduction(step);
    } else if (value(v).source == Source::input) {
      name_of(v);
    } else {
      compute(step);
    }
  }

  void compute(const Step& step) {
    const int v = step.value;
    const Value& made = value(v);
    if (step.inner >= 0) declare(step.inner);
    if (step.twin < 0) {
      declare(v);
      return keep(step.instruction.out, v);
    }
    computed_.insert(v);
    computed_.insert(step.twin);
    is_dear_ = true;
    const int sine = made.op == Operation::sin ? v : step.twin;
    const int cosine = made.op == Operation::sin ? step.twin : v;
    body_ += "    const auto [" + names_.of(sine) + ", " + names_.of(cosine) + "] = op::sincos(" + operands_of(v) + ");\n";
    keep(step.instruction.out, sine);
    keep(step.instruction.second, cosine);
  }

  void declare(int v) {
    const Value& made = value(v);
    is_dear_ = is_dear_ || is_dear(made.op);
    const std::string operands = operands_of(v);
    computed_.insert(v);
    body_ += "    const " + std::string(type_name(made.type)) + " " + names_.of(v) + " = op::" +
             program::describe(made.op).name + "(" + operands + ");\n";
  }

  std::string operands_of(int v) {
    std::string operands;
    for (int k = 0; k < program::describe(value(v).op).operands; ++k) {
      operands += (k == 0 ? "" : ", ") + name_of(value(v).operand[k]);
    }
    return operands;
  }

  // Where it has been computed into more than a register.
  void keep(int slot_number, int v) {
    const Home home = schedule_.slots[slot_number].home;
    if (home != Home::output && home != Home::kept) return;
    put(slot_number, v);
    stored_[v] = slot_number;
  }

  void put(int slot_number, int v) {
    const auto inputs = static_cast<int>(program_.inputs.size());
    const bool is_output = schedule_.slots[slot_number].home == Home::output;
    const char* memory =
        is_output ? memory_name(program_.outputs[slot_number - inputs].kind) : memory_name(value(v).type);
    const std::string& from = name_of(v);
    const std::string to = names_.with(is_output ? "out_" : "kept_", v);
    head_ += "  const Output<" + std::string(memory) + "> " + to + "(" + slot(slot_number) + ");\n";
    body_ += "    " + to + ".put(k, n, " + from + ");\n";
  }

  // What is not computed in this stage is declared, and read, where it is first needed.
  const std::string& name_of(int v) {
    if (computed_.count(v) != 0) return names_.of(v);
    computed_.insert(v);
    const Value& read = value(v);
    const std::string declared = "const " + std::string(type_name(read.type)) + " " + names_.of(v) + " = ";
    if (read.level == Level::number) {
      head_ += "  " + declared + "number<" + type_name(read.type) + ">(" + slot(schedule_.slot_of[v]) + ");";
      head_ += read.source == Source::constant ? "  // " + spelled(read) + "\n" : "\n";
    } else {
      body_ += "    " + declared + reader(v) + ".at(k, n);\n";
    }
    return names_.of(v);
  }

  const std::string& reader(int v) {
    const auto found = readers_.find(v);
    if (found != readers_.end()) return found->second;
    const Value& read = value(v);
    const bool is_tensor = read.level == Level::element && read.source == Source::input;
    const char* memory = is_tensor ? memory_name(program_.inputs[read.operand[0]].kind) : memory_name(read.type);
    const std::string name = names_.with(read.level == Level::row ? "row_" : is_tensor ? "in_" : "kept_", v);
    head_ += "  const Input<" + std::string(memory) + "> " + name + "(" + slot(schedule_.slot_of[v]) + ");\n";
    return readers_.emplace(v, name).first->second;
  }

  void write_reduction(const Step& step) {
    const int v = step.value;
    const int operand = value(v).operand[0];
    const std::string type = type_name(value(operand).type);
    reductions_ += "  reduce<" + std::string(reduction_name(value(v).op)) + ", " + type + ">(frame, count, " +
                   reduced(operand) + ", " + slot(step.instruction.out) + ");  // " + value(v).name + "\n";
  }

  void write_total(const Step& step) {
    const int v = step.value;
    reductions_ += "  total<" + std::string(type_name(value(v).type)) + ">(frame, count, " + reduced(v) + ", " +
                   slot(step.instruction.out) + ");  // " + value(v).name + "\n";
  }

  // Where its elements lie side by side: where it has been read, or in a block of the stage's own.
  std::string reduced(int v) {
    if (value(v).level == Level::number) return slot(schedule_.slot_of[v]);
    if (const auto stored = stored_.find(v); stored != stored_.end()) return slot(stored->second);
    const bool is_read = computed_.count(v) == 0 || readers_.count(v) != 0;
    if (is_read && is_stored_as_computed(v)) return reader(v) + ".slot()";
    auto found = blocks_of_.find(v);
    if (found == blocks_of_.end()) {
      found = blocks_of_.emplace(v, names_.with("block_of_", v)).first;
      ++blocks_;
      head_ += "  Block<" + std::string(type_name(value(v).type)) + "> " + found->second + ";\n";
      const std::string& from = name_of(v);
      body_ += "    " + found->second + ".put(k, " + from + ");\n";
    }
    return found->second + ".slot()";
  }

  bool is_stored_as_computed(int v) const {
    if (value(v).level != Level::element || value(v).source != Source::input) return true;
    const Kind kind = program_.inputs[value(v).operand[0]].kind;
    return element_size(kind) == program::size_of(value(v).type);
  }

  const Program& program_;
  const Schedule& schedule_;
  const Stage& stage_;
  EmittedNames names_;
  std::set<int> computed_;
  std::map<int, std::string> readers_;
  std::map<int, std::string> blocks_of_;
  std::map<int, int> stored_;  // what the stage has written as it is computed, with the slot
  int blocks_ = 0;
  bool is_dear_ = false;
  std::string head_;
  std::string body_;
  std::string reductions_;
};

std::string commented(std::string_view text) {
  std::string result;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    result += "// " + std::string(text.substr(at, end - at)) + "\n";
    at = end + 1;
  }
  return result;
}

}  // namespace

std::string emit(const Program& program, const Schedule& schedule, std::string_view text, std::string_view name) {
  std::string functions;
  std::string listed;
  for (size_t k = 0; k < schedule.stages.size(); ++k) {
    const std::string stage = std::string(name) + "_stage_" + std::to_string(k);
    const std::string function = StageWriter(program, schedule, schedule.stages[k]).write(stage);
    functions += function.empty() ? "" : function + "\n";
    listed += (k == 0 ? "" : ", ") + (function.empty() ? std::string("nullptr") : stage);
  }
  const std::string scope = "namespace fourfold::cpu::FOURFOLD_CPU_LEVEL::emitted";
  return commented(text) + "#include \"cpu/kernels/emitted.h\"\n\n" + scope + " {\n\n" + functions +
         "FOURFOLD_STAGES(" + std::string(name) + ") = {" + listed + "};\n\n}  // " + scope + "\n";
}

}  // namespace fourfold::cpu
