#include "cpu/program/schedule.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <stdexcept>

#include "cpu/program/liveness.h"

namespace fourfold::cpu {
namespace {

using program::Level;
using program::Operation;
using program::Program;
using program::Source;
using program::Type;
using program::Value;

Primitive* primitive_of(Operation op, Type type) {
  if (program::is_reduction(op)) return reduction_primitive(op, type);
  Primitive* found = floating_primitive(op, type);
  return found != nullptr ? found : plain_primitive(op, type);
}

// Null if no conversion is needed.
Primitive* load_of(Kind kind) { return is_half(kind) ? half_load_primitive(kind) : plain_load_primitive(kind); }
Primitive* store_of(Kind kind) { return is_half(kind) ? half_store_primitive(kind) : plain_store_primitive(kind); }

class Scheduler {
 public:
  explicit Scheduler(const Program& program) : program_(program), live_(program) {}

  Schedule run() {
    for (const auto& input : program_.inputs) add_slot(Storage::input, element_size(input.kind));
    for (const auto& output : program_.outputs) add_slot(Storage::output, element_size(output.kind));
    result_.cost = live_.cost();
    result_.stages.resize(live_.stages());
    schedule_numbers();
    find_materialized();
    for (stage_ = 0; stage_ < static_cast<int>(result_.stages.size()); ++stage_) schedule_stage();
    return std::move(result_);
  }

 private:
  const Value& value(int v) const { return live_.value(v); }
  int operands(int v) const { return live_.operands(v); }
  const program::Input& input_of(int v) const { return live_.input_of(v); }
  bool is_sum(int v) const { return live_.is_sum(v); }
  bool is_here(int v) const { return live_.is_here(v, stage_); }

  uint16_t add_slot(Storage storage, int64_t size) {
    if (result_.slots.size() > UINT16_MAX - 1) throw std::invalid_argument("program: expected fewer values");
    result_.slots.push_back({storage, size});
    return static_cast<uint16_t>(result_.slots.size() - 1);
  }
  uint16_t number_slot() { return add_slot(Storage::number, 8); }
  uint16_t row_slot() { return add_slot(Storage::row, 8); }
  uint16_t sum_slot() { return add_slot(Storage::sum, 8); }
  uint16_t input_slot(int v) const { return static_cast<uint16_t>(value(v).operand[0]); }
  uint16_t output_slot(size_t k) const { return static_cast<uint16_t>(program_.inputs.size() + k); }

  Step step(Primitive* run, uint16_t out, std::initializer_list<int> in) const {
    Step made{{run, out, 0, {0, 0, 0}}};
    std::transform(in.begin(), in.end(), made.instruction.in, [](int slot) { return static_cast<uint16_t>(slot); });
    return made;
  }

  Step operation(int v, uint16_t out) const {
    const Value& made = value(v);
    const int typed = made.op == Operation::where ? 1 : 0;
    Step result{{primitive_of(made.op, value(made.operand[typed]).type), out, 0, {0, 0, 0}}};
    for (int k = 0; k < operands(v); ++k) result.instruction.in[k] = static_cast<uint16_t>(slot_of(made.operand[k]));
    return result;
  }

  int slot_of(int v) const {
    return live_[v].register_slot >= 0 ? live_[v].register_slot : live_[v].materialized;
  }

  void schedule_numbers() {
    for (size_t v = 0; v < live_.size(); ++v) {
      if (!live_[v].needed || value(v).level != Level::number) continue;
      const Value& number = value(v);
      if (number.source == Source::input && !input_of(v).is_number && load_of(input_of(v).kind) == nullptr) {
        live_[v].materialized = input_slot(v);
        continue;
      }
      const uint16_t slot = number_slot();
      if (number.source == Source::constant) {
        result_.constants.push_back({slot, bits_of(number)});
      } else if (number.source == Source::columns) {
        result_.given.push_back({slot, -1, number.type});
      } else if (number.source == Source::operation) {
        result_.numbers.push_back(operation(v, slot));
      } else if (input_of(v).is_number) {
        result_.given.push_back({slot, number.operand[0], number.type});
      } else {
        result_.numbers.push_back(step(load_of(input_of(v).kind), slot, {input_slot(v)}));
      }
      live_[v].materialized = slot;
    }
    for (size_t k = 0; k < program_.outputs.size(); ++k) {
      if (program_.outputs[k].level == Level::number) result_.once.push_back(store(k, live_[program_.outputs[k].value].materialized));
    }
  }

  static uint64_t bits_of(const Value& constant) {
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

  Step store(size_t k, int slot) const {
    const auto& output = program_.outputs[k];
    Primitive* convert = store_of(output.kind);
    return step(convert != nullptr ? convert : copy_primitive(value(output.value).type), output_slot(k), {slot});
  }

  // Materializes elements' values that a later stage reads and that are expensive to recompute.
  void find_materialized() {
    for (size_t v = 0; v < live_.size(); ++v) {
      if (!live_[v].needed) continue;
      const int stage = is_sum(v) ? live_[v].stage - 1 : live_[v].stage;
      for (int k = 0; k < operands(v); ++k) materialize_if_expensive(value(v).operand[k], stage);
    }
  }

  void materialize_if_expensive(int v, int stage) {
    if (!live_.is_expensive_again(v, stage)) return;
    live_[v].materialized = add_slot(Storage::materialized, program::size_of(value(v).type));
  }

  void schedule_stage() {
    schedule_rows();
    live_.count_uses(stage_);
    for (size_t v = 0; v < live_.size(); ++v) {
      if (!live_[v].needed) continue;
      if (is_sum(v) && live_[v].stage == stage_ + 1) {
        emit_sum(static_cast<int>(v));
      } else if (value(v).level == Level::element && live_[v].stage == stage_) {
        if (live_.has_output(static_cast<int>(v)) || live_[v].materialized >= 0) emit(static_cast<int>(v));
      }
      store_outputs(static_cast<int>(v));
      emit_column_sums(static_cast<int>(v));
    }
    free_ = all_;
    live_.leave_stage();
  }

  Stage& stage() { return result_.stages[stage_]; }

  void schedule_rows() {
    for (size_t v = 0; v < live_.size(); ++v) {
      if (!live_[v].needed || value(v).level != Level::row || live_[v].stage != stage_) continue;
      schedule_row(static_cast<int>(v));
      for (size_t k = 0; k < program_.outputs.size(); ++k) {
        const auto& output = program_.outputs[k];
        if (output.value == static_cast<int>(v) && output.level == Level::row) stage().rows.push_back(store(k, live_[v].materialized));
      }
    }
    for (size_t k = 0; k < program_.outputs.size(); ++k) {
      const auto& output = program_.outputs[k];
      if (output.level != Level::row) continue;
      if (stage_ == 0) result_.row_outputs.push_back(static_cast<int>(k));
      if (stage_ == 0 && value(output.value).level == Level::number) stage().rows.push_back(store(k, live_[output.value].materialized));
    }
  }

  void schedule_row(int v) {
    LiveValue& live = live_[v];
    if (value(v).source == Source::input) {
      result_.row_inputs.push_back(value(v).operand[0]);
      Primitive* load = load_of(input_of(v).kind);
      live.materialized = input_slot(v);
      if (load == nullptr) return;
      live.materialized = row_slot();
      stage().rows.push_back(step(load, static_cast<uint16_t>(live.materialized), {input_slot(v)}));
    } else if (is_sum(v)) {  // converts the sum to the value's type
      const Type summed = type_of_sum(value(v).op, value(value(v).operand[0]).type);
      Primitive* convert = summed == value(v).type ? copy_primitive(summed) : plain_primitive(Operation::to_float32, summed);
      const int sum = live.materialized;
      live.materialized = row_slot();
      stage().rows.push_back(step(convert, static_cast<uint16_t>(live.materialized), {sum}));
    } else {
      const uint16_t slot = row_slot();
      stage().rows.push_back(operation(v, slot));
      live.materialized = slot;
    }
  }

  uint16_t block_slot(int64_t size) {
    result_.block_bytes += size;
    return add_slot(Storage::block, size);
  }

  uint16_t take_register(int64_t size) {
    auto& free = free_[size];
    if (free.empty()) {
      free.push_back(block_slot(size));
      all_[size].push_back(free.back());
    }
    const uint16_t slot = free.back();
    free.pop_back();
    return slot;
  }

  void release(int v) {
    LiveValue& live = live_[v];
    if (--live.uses > 0 || live.register_slot < 0) return;
    if (result_.slots[live.register_slot].storage != Storage::block || live.register_slot == live.expanded) return;
    free_[result_.slots[live.register_slot].size].push_back(static_cast<uint16_t>(live.register_slot));
  }

  // Makes an operand available for elements: contiguous, or one value for all of them.
  void ready(int v) {
    if (value(v).level == Level::element) return emit(v);
    if (value(v).level != Level::row || live_[v].register_slot >= 0) return;
    // A separate slot: in a block of one row it aliases the row's slot, which nothing else may overwrite.
    LiveValue& live = live_[v];
    if (live.expanded < 0) live.expanded = block_slot(program::size_of(value(v).type));
    live.register_slot = live.expanded;
    Step made = step(expand_primitive(value(v).type), static_cast<uint16_t>(live.expanded), {live.materialized});
    made.expands = true;
    stage().elements.push_back(made);
  }

  // Computes v; at most once per stage.
  void emit(int v) {
    LiveValue& live = live_[v];
    if (live.emitted == stage_ || is_here(v)) return;
    live.emitted = stage_;
    if (value(v).source == Source::input) return emit_input(v);
    for (int k = 0; k < operands(v); ++k) {
      if (can_be_inner(value(v).operand[k], v, k)) return emit_pair(value(v).operand[k], v, k);
    }
    for (int k = 0; k < operands(v); ++k) ready(value(v).operand[k]);
    Step made = operation(v, 0);
    const int twin = twin_of(v);
    for (int k = 0; k < operands(v); ++k) release(value(v).operand[k]);
    made.instruction.out = destination(v);
    if (twin >= 0) {
      live_[twin].emitted = stage_;
      release(value(twin).operand[0]);
      const uint16_t other = destination(twin);
      made.instruction.run = sincos_primitive(value(v).type);
      made.instruction.second = value(v).op == Operation::sin ? other : made.instruction.out;
      made.instruction.out = value(v).op == Operation::sin ? made.instruction.out : other;
    }
    stage().elements.push_back(made);
    if (is_expensive(value(v).op) && program::is_floating(value(v).type)) ++stage().expensive;
  }

  // Whether v is the only use of its k-th operand w, and one primitive computes both.
  bool can_be_inner(int w, int v, int k) const {
    const LiveValue& live = live_[w];
    const bool is_own = live.emitted != stage_ && live.uses == 1 && live.materialized < 0;
    if (!is_own || value(w).level != Level::element || value(w).source != Source::operation) return false;
    return paired_primitive(value(w).op, value(v).op, k == 1, value(v).type) != nullptr;
  }

  void emit_pair(int w, int v, int k) {
    live_[w].emitted = stage_;
    const int used[] = {value(w).operand[0], value(w).operand[1], value(v).operand[1 - k]};
    for (const int u : used) ready(u);
    Step made = step(paired_primitive(value(w).op, value(v).op, k == 1, value(v).type), 0,
                     {slot_of(used[0]), slot_of(used[1]), slot_of(used[2])});
    release(w);
    for (const int u : used) release(u);
    made.instruction.out = destination(v);
    stage().elements.push_back(made);
  }

  // For a sine v the cosine of the same operand, and vice versa, if this stage needs it too.
  int twin_of(int v) const {
    const Operation op = value(v).op;
    if (op != Operation::sin && op != Operation::cos) return -1;
    const Operation wanted = op == Operation::sin ? Operation::cos : Operation::sin;
    for (size_t w = 0; w < live_.size(); ++w) {
      const bool is_twin = value(w).source == Source::operation && value(w).op == wanted &&
                           value(w).operand[0] == value(v).operand[0];
      if (is_twin && live_[w].uses > 0 && live_[w].emitted != stage_ && !is_here(w)) return static_cast<int>(w);
    }
    return -1;
  }

  void emit_input(int v) {
    LiveValue& live = live_[v];
    stage().inputs.push_back(value(v).operand[0]);
    live.register_slot = input_slot(v);
    Primitive* load = load_of(input_of(v).kind);
    if (load == nullptr) return;
    const uint16_t slot = destination(v);
    stage().elements.push_back(step(load, slot, {input_slot(v)}));
  }

  // The slot of a materialized value, otherwise an output's memory if it needs no conversion, otherwise a register.
  uint16_t destination(int v) {
    LiveValue& live = live_[v];
    const bool keeps = live.materialized >= 0 && live.stage == stage_;
    if (keeps) return static_cast<uint16_t>(live.materialized);
    for (size_t k = 0; k < program_.outputs.size() && live.stage == stage_; ++k) {
      const auto& output = program_.outputs[k];
      if (output.value != v || output.level != Level::element || store_of(output.kind) != nullptr) continue;
      live.register_slot = output_slot(k);
      return output_slot(k);
    }
    live.register_slot = take_register(program::size_of(value(v).type));
    return static_cast<uint16_t>(live.register_slot);
  }

  void emit_sum(int v) {
    const int operand = value(v).operand[0];
    ready(operand);
    const Type type = value(operand).type;
    live_[v].materialized = sum_slot();
    const auto slot = static_cast<uint16_t>(live_[v].materialized);
    stage().elements.push_back(step(reduction_primitive(value(v).op, type), slot, {slot_of(operand)}));
    stage().sums.push_back(static_cast<uint16_t>(live_[v].materialized));
    stage().combine.push_back(combine_primitive(value(v).op, type_of_sum(value(v).op, type)));
    release(operand);
  }

  void emit_column_sums(int v) {
    if (live_[v].stage != stage_) return;
    for (size_t k = 0; k < program_.outputs.size(); ++k) {
      const auto& output = program_.outputs[k];
      if (output.value != v || output.level != Level::column) continue;
      ready(v);
      const uint16_t slot = add_slot(Storage::column_sum, sizeof(double));
      stage().elements.push_back(step(column_sum_primitive(value(v).type), slot, {slot_of(v)}));
      result_.column_sums.push_back({slot, static_cast<int>(k)});
      release(v);
    }
  }

  // Stores v into every output that isn't already its destination.
  void store_outputs(int v) {
    if (live_[v].stage != stage_) return;
    for (size_t k = 0; k < program_.outputs.size(); ++k) {
      const auto& output = program_.outputs[k];
      if (output.value != v || output.level != Level::element) continue;
      stage().outputs.push_back(static_cast<int>(k));
      ready(v);
      if (slot_of(v) != output_slot(k)) stage().elements.push_back(store(k, slot_of(v)));
      release(v);
    }
  }

  const Program& program_;
  Liveness live_;
  Schedule result_;
  int stage_ = 0;
  std::map<int64_t, std::vector<uint16_t>> free_;  // the stage's free registers, by element size
  std::map<int64_t, std::vector<uint16_t>> all_;
};

}  // namespace

Schedule schedule(const program::Program& program) { return Scheduler(program).run(); }

}  // namespace fourfold::cpu
