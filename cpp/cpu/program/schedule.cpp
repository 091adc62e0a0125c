#include "cpu/program/schedule.h"

#include <algorithm>
#include <cstring>
#include <map>

namespace fourfold::cpu {
namespace {

using program::Level;
using program::Operation;
using program::Output;
using program::Program;
using program::Source;
using program::Type;
using program::Value;

// Bytes of a block's places that fit into the L1 cache, and the fewest elements of a block.
constexpr int64_t cache = 32768;
constexpr int64_t fewest_elements = 256;
// The cost of a tensor's element for its memory access, in additions.
constexpr int64_t cost_of_access = 5;
constexpr int none = -1;

uint64_t bits_of(const Value& constant) {
  uint64_t bits = 0;
  const auto put = [&](auto number) { std::memcpy(&bits, &number, sizeof number); };
  switch (constant.type) {
    case Type::boolean: put(constant.integer != 0); break;
    case Type::int32: put(static_cast<int32_t>(constant.integer)); break;
    case Type::int64: put(constant.integer); break;
    case Type::float32: put(static_cast<float>(constant.floating)); break;
    default: put(constant.floating);
  }
  return bits;
}

class Scheduler {
 public:
  explicit Scheduler(const Program& program) : program_(program), known_(program.values.size()) {}

  Schedule run() {
    for (const auto& input : program_.inputs) add_place(Memory::tensor, element_size(input.kind));
    for (const Output& output : program_.outputs) add_place(Memory::tensor, element_size(output.kind));
    find_needed();
    schedule_numbers();
    find_kept();
    for (stage_ = 0; stage_ < static_cast<int>(schedule_.stages.size()); ++stage_) schedule_stage();
    find_block();
    return std::move(schedule_);
  }

 private:
  // What is known of a value. places: none if it has none (yet).
  struct Known {
    bool is_needed = false;
    bool is_kept = false;
    int place = none;
    int broadcast = none;  // of a row's value, in this stage
    int uses = 0;          // that remain in this stage
  };

  static bool is_operation(const Value& value) { return value.source == Source::operation; }
  static bool is_reduction(const Value& value) { return is_operation(value) && program::is_reduction(value.op); }
  static int operands(const Value& value) { return is_operation(value) ? program::describe(value.op).operands : 0; }
  const program::Input& input_of(const Value& value) const { return program_.inputs[value.operand[0]]; }
  int output_place(size_t output) const { return static_cast<int>(program_.inputs.size() + output); }
  Stage& stage() { return schedule_.stages[stage_]; }
  // The stage that computes a value: of a reduction, the one before that which can use it.
  static int stage_of(const Value& value) { return value.stage - (is_reduction(value) ? 1 : 0); }

  int add_place(Memory memory, int64_t size) {
    schedule_.places.push_back({memory, size});
    return static_cast<int>(schedule_.places.size()) - 1;
  }

  Step step(ArrayFunction* map, int to, std::initializer_list<int> from) const {
    Step made{.to = to, .map = map};
    std::copy(from.begin(), from.end(), made.from);
    return made;
  }

  Step copy(ArrayFunction* conversion, int64_t size, int to, int from) const {
    return step(conversion != nullptr ? conversion : copy_of(size), to, {from});
  }

  // place_of: the place of an operand.
  template <typename F>
  Step operation(const Value& value, int to, const F& place_of) const {
    const Type type = program_.values[value.operand[value.op == Operation::where ? 1 : 0]].type;
    Step made{.type = type, .to = to, .map = function_of(value.op, type)};
    for (int k = 0; k < operands(value); ++k) made.from[k] = place_of(value.operand[k]);
    return made;
  }

  Step store(size_t output, int from) const {
    const Kind kind = program_.outputs[output].kind;
    return copy(store_of(kind), element_size(kind), output_place(output), from);
  }

  template <typename F>
  void for_outputs(int v, Level level, const F& f) const {
    for (size_t k = 0; k < program_.outputs.size(); ++k) {
      if (program_.outputs[k].value == v && program_.outputs[k].level == level) f(k);
    }
  }

  template <typename F>
  void for_needed(const F& f) {
    for (size_t v = 0; v < known_.size(); ++v) {
      if (known_[v].is_needed) f(static_cast<int>(v), program_.values[v]);
    }
  }

  void find_needed() {
    int last = 0;
    for (const Output& output : program_.outputs) known_[output.value].is_needed = true;
    for (size_t v = known_.size(); v-- > 0;) {
      const Value& value = program_.values[v];
      if (!known_[v].is_needed) continue;
      last = std::max(last, value.stage);
      if (is_operation(value)) schedule_.cost += program::describe(value.op).cost;
      for (int k = 0; k < operands(value); ++k) known_[value.operand[k]].is_needed = true;
    }
    schedule_.cost += cost_of_access * static_cast<int64_t>(program_.inputs.size() + program_.outputs.size());
    schedule_.stages.resize(last + 1);
  }

  void schedule_numbers() {
    for_needed([&](int v, const Value& value) {
      if (value.level != Level::number) return;
      const int place = known_[v].place = add_place(Memory::number, program::size_of(value.type));
      if (value.source == Source::constant) {
        schedule_.constants.push_back({place, bits_of(value)});
      } else if (value.source == Source::columns) {
        schedule_.given.push_back({place, none, value.type});
      } else if (is_operation(value)) {
        schedule_.numbers.push_back(operation(value, place, [&](int w) { return known_[w].place; }));
      } else if (input_of(value).is_number) {
        schedule_.given.push_back({place, value.operand[0], value.type});
      } else {
        const Kind kind = input_of(value).kind;
        schedule_.numbers.push_back(copy(load_of(kind), element_size(kind), place, value.operand[0]));
      }
      for_outputs(v, Level::number, [&](size_t k) { schedule_.once.push_back(store(k, place)); });
    });
  }

  void find_kept() {
    for_needed([&](int, const Value& value) {
      for (int k = 0; k < operands(value); ++k) {
        const Value& operand = program_.values[value.operand[k]];
        if (operand.level != Level::element || !is_operation(operand) || operand.stage == stage_of(value)) continue;
        Known& known = known_[value.operand[k]];
        if (!known.is_kept) known.place = add_place(Memory::kept, program::size_of(operand.type));
        known.is_kept = true;
      }
    });
  }

  void schedule_stage() {
    for_needed([&](int v, const Value& value) {
      if (value.level == Level::row && value.stage == stage_) schedule_row(v, value);
    });
    for (size_t k = 0; k < program_.outputs.size(); ++k) {
      const Output& output = program_.outputs[k];
      if (output.level != Level::row || program_.values[output.value].stage != stage_) continue;
      schedule_.row_outputs.push_back(output_place(k));
      stage().rows.push_back(store(k, known_[output.value].place));
    }
    count_uses();
    for_needed([&](int v, const Value& value) {
      if (value.level == Level::element && known_[v].uses > 0 && !is_here(v)) compute(v, value);
      if (is_reduction(value) && stage_of(value) == stage_) reduce(v, value);
      if (value.stage == stage_) store_all(v, value);
    });
    for_needed([&](int v, const Value& value) {
      known_[v].broadcast = none;
      if (value.level == Level::element && !known_[v].is_kept) known_[v].place = none;
    });
    free_.clear();
  }

  void schedule_row(int v, const Value& value) {
    Known& known = known_[v];
    if (value.source == Source::input) {
      schedule_.row_inputs.push_back(value.operand[0]);
      const Kind kind = input_of(value).kind;
      known.place = value.operand[0];
      if (load_of(kind) == nullptr) return;
      known.place = add_place(Memory::row, program::size_of(value.type));
      stage().rows.push_back(step(load_of(kind), known.place, {value.operand[0]}));
    } else if (is_reduction(value)) {
      const Type total = type_of_total(value.op, program_.values[value.operand[0]].type);
      const int place = add_place(Memory::row, program::size_of(value.type));
      ArrayFunction* const conversion = total == value.type ? nullptr : function_of(Operation::to_float32, total);
      stage().rows.push_back(copy(conversion, program::size_of(value.type), place, known.place));
      known.place = place;
    } else {
      known.place = add_place(Memory::row, program::size_of(value.type));
      stage().rows.push_back(operation(value, known.place, [&](int w) { return known_[w].place; }));
    }
  }

  // Whether its place holds the value before the stage.
  bool is_here(int v) const { return known_[v].is_kept && program_.values[v].stage < stage_; }

  // Counts how often this stage reads each element's value; 0 for those that it doesn't compute.
  void count_uses() {
    for (Known& known : known_) known.uses = 0;
    for (size_t v = known_.size(); v-- > 0;) {
      const Value& value = program_.values[v];
      Known& known = known_[v];
      if (!known.is_needed) continue;
      if (value.stage == stage_) {
        known.uses += known.is_kept;
        const auto count = [&](size_t) { ++known.uses; };
        for_outputs(static_cast<int>(v), Level::element, count);
        for_outputs(static_cast<int>(v), Level::column, count);
      }
      const bool reduces = is_reduction(value) && stage_of(value) == stage_;
      const bool is_computed = value.level == Level::element && known.uses > 0 && !is_here(static_cast<int>(v));
      for (int k = 0; k < operands(value) && (reduces || is_computed); ++k) ++known_[value.operand[k]].uses;
    }
  }

  // The place of an operand for elements.
  int ready(int v) {
    const Value& value = program_.values[v];
    Known& known = known_[v];
    if (value.level != Level::row) return known.place;
    if (known.broadcast == none) {
      known.broadcast = add_place(Memory::broadcast, program::size_of(value.type));
      stage().broadcasts.push_back({known.place, known.broadcast});
    }
    return known.broadcast;
  }

  // The same with one element for each column.
  int in_columns(int v) {
    const Value& value = program_.values[v];
    const int from = ready(v);
    if (value.level == Level::element) return from;
    const int64_t size = program::size_of(value.type);
    const int to = add_place(Memory::block, size);
    stage().elements.push_back(copy(nullptr, size, to, from));
    return to;
  }

  void compute(int v, const Value& value) {
    Known& known = known_[v];
    if (value.source == Source::input) {
      stage().inputs.push_back(value.operand[0]);
      known.place = value.operand[0];
      ArrayFunction* const load = load_of(input_of(value).kind);
      if (load == nullptr) return;
      known.place = take(program::size_of(value.type));
      stage().elements.push_back(step(load, known.place, {value.operand[0]}));
      return;
    }
    Step made = operation(value, 0, [&](int w) { return ready(w); });
    for (int k = 0; k < operands(value); ++k) release(value.operand[k]);
    if (!known.is_kept) known.place = destination(v, value);
    made.to = known.place;
    stage().elements.push_back(made);
    if (known.is_kept) --known.uses;
  }

  // The place of a value that isn't kept: an output that has its dtype, or a part of the block's memory.
  int destination(int v, const Value& value) {
    int found = none;
    for_outputs(v, Level::element, [&](size_t k) {
      if (found == none && store_of(program_.outputs[k].kind) == nullptr) found = output_place(k);
    });
    return found != none && value.stage == stage_ ? found : take(program::size_of(value.type));
  }

  int take(int64_t size) {
    std::vector<int>& free = free_[size];
    if (free.empty()) return add_place(Memory::block, size);
    const int place = free.back();
    free.pop_back();
    return place;
  }

  void release(int v) {
    Known& known = known_[v];
    if (--known.uses > 0 || known.place == none || schedule_.places[known.place].memory != Memory::block) return;
    free_[schedule_.places[known.place].size].push_back(known.place);
  }

  void reduce(int v, const Value& value) {
    const int operand = value.operand[0];
    const Type type = program_.values[operand].type;
    known_[v].place = add_place(Memory::total, program::size_of(type_of_total(value.op, type)));
    Step made{.kind = Step::Kind::reduce, .type = type, .to = known_[v].place, .reduction = reduction_of(value.op, type)};
    made.from[0] = in_columns(operand);
    stage().elements.push_back(made);
    release(operand);
  }

  void store_all(int v, const Value& value) {
    for_outputs(v, Level::element, [&](size_t k) {
      stage().outputs.push_back(output_place(k));
      const int from = ready(v);
      if (from != output_place(k)) stage().elements.push_back(store(k, from));
      release(v);
    });
    for_outputs(v, Level::column, [&](size_t k) {
      const int place = add_place(Memory::column_sum, sizeof(double));
      Step made{.kind = Step::Kind::add_to_columns, .type = value.type, .to = place};
      made.from[0] = in_columns(v);
      stage().elements.push_back(made);
      schedule_.column_sums.push_back({place, static_cast<int>(k)});
      release(v);
    });
  }

  void find_block() {
    int64_t bytes = 0;
    bool reduces = false;
    for (const Place& place : schedule_.places) {
      if (place.memory == Memory::tensor || place.memory == Memory::block || place.memory == Memory::kept) bytes += place.size;
      reduces |= place.memory == Memory::total;
    }
    schedule_.block = reduces ? program::reduction_block
                              : std::clamp(cache / bytes / 64 * 64, fewest_elements, program::reduction_block);
  }

  const Program& program_;
  std::vector<Known> known_;
  Schedule schedule_;
  int stage_ = 0;
  std::map<int64_t, std::vector<int>> free_;  // the stage's free places of the block, by element size
};

}  // namespace

Schedule schedule_of(const Program& program) { return Scheduler(program).run(); }

}  // namespace fourfold::cpu
