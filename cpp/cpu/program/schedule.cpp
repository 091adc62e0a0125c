#include "cpu/program/schedule.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <stdexcept>

#include "cpu/program/places.h"

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

bool is_half(Kind kind) { return kind == Kind::float16 || kind == Kind::bfloat16; }

// Null where memory holds what is computed in.
Primitive* load_of(Kind kind) { return is_half(kind) ? half_load_primitive(kind) : plain_load_primitive(kind); }
Primitive* store_of(Kind kind) { return is_half(kind) ? half_store_primitive(kind) : plain_store_primitive(kind); }

class Scheduler {
 public:
  explicit Scheduler(const Program& program) : program_(program), places_(program) {}

  Schedule run() {
    for (size_t k = 0; k < program_.inputs.size(); ++k) add_slot(Home::input, element_size(program_.inputs[k].kind), k);
    for (size_t k = 0; k < program_.outputs.size(); ++k) add_slot(Home::output, element_size(program_.outputs[k].kind), k);
    result_.cost = places_.cost();
    result_.stages.resize(places_.stages());
    schedule_numbers();
    find_kept();
    for (stage_ = 0; stage_ < static_cast<int>(result_.stages.size()); ++stage_) schedule_stage();
    for (size_t v = 0; v < places_.size(); ++v) result_.slot_of.push_back(known_slot(static_cast<int>(v)));
    return std::move(result_);
  }

 private:
  const Value& value(int v) const { return places_.value(v); }
  int operands(int v) const { return places_.operands(v); }
  const program::Input& input_of(int v) const { return places_.input_of(v); }
  bool is_sum(int v) const { return places_.is_sum(v); }
  bool is_here(int v) const { return places_.is_here(v, stage_); }

  uint16_t add_slot(Home home, int64_t size, size_t place) {
    if (result_.slots.size() > UINT16_MAX - 1) throw std::invalid_argument("program: expected fewer values");
    result_.slots.push_back({home, size, static_cast<int>(place)});
    return static_cast<uint16_t>(result_.slots.size() - 1);
  }
  uint16_t number_slot() { return add_slot(Home::number, 8, numbers_++); }
  uint16_t row_slot() { return add_slot(Home::row, 8, rows_++); }
  uint16_t sum_slot() { return add_slot(Home::sum, 8, sums_++); }
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

  // Where a stage that does not compute v finds it.
  int known_slot(int v) const {
    if (value(v).level == Level::row) return places_[v].expanded;
    const bool lies_there = value(v).level == Level::element && value(v).source == Source::input;
    return lies_there ? input_slot(v) : places_[v].kept;
  }

  int slot_of(int v) const {
    return places_[v].register_slot >= 0 ? places_[v].register_slot : places_[v].kept;
  }

  void schedule_numbers() {
    for (size_t v = 0; v < places_.size(); ++v) {
      if (!places_[v].needed || value(v).level != Level::number) continue;
      const Value& number = value(v);
      if (number.source == Source::input && !input_of(v).is_number && load_of(input_of(v).kind) == nullptr) {
        places_[v].kept = input_slot(v);
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
      places_[v].kept = slot;
    }
    for (size_t k = 0; k < program_.outputs.size(); ++k) {
      if (program_.outputs[k].level == Level::number) result_.once.push_back(store(k, places_[program_.outputs[k].value].kept));
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

  // Elements' values that a later stage uses, and had better not compute again.
  void find_kept() {
    for (size_t v = 0; v < places_.size(); ++v) {
      if (!places_[v].needed) continue;
      const int stage = is_sum(v) ? places_[v].stage - 1 : places_[v].stage;
      for (int k = 0; k < operands(v); ++k) keep_if_dear(value(v).operand[k], stage);
    }
  }

  void keep_if_dear(int v, int stage) {
    if (!places_.is_dear_again(v, stage)) return;
    places_[v].kept = add_slot(Home::kept, program::size_of(value(v).type), kept_++);
  }

  void schedule_stage() {
    schedule_rows();
    places_.count_uses(stage_);
    for (size_t v = 0; v < places_.size(); ++v) {
      if (!places_[v].needed) continue;
      if (is_sum(v) && places_[v].stage == stage_ + 1) {
        emit_sum(static_cast<int>(v));
      } else if (value(v).level == Level::element && places_[v].stage == stage_ && (places_.has_output(static_cast<int>(v)) || places_[v].kept >= 0)) {
        emit(static_cast<int>(v));
      }
      store_outputs(static_cast<int>(v));
      emit_totals(static_cast<int>(v));
    }
    free_ = all_;
    places_.leave_stage();
  }

  Stage& stage() { return result_.stages[stage_]; }

  void schedule_rows() {
    for (size_t v = 0; v < places_.size(); ++v) {
      if (!places_[v].needed || value(v).level != Level::row || places_[v].stage != stage_) continue;
      schedule_row(static_cast<int>(v));
      for (size_t k = 0; k < program_.outputs.size(); ++k) {
        const auto& output = program_.outputs[k];
        if (output.value == static_cast<int>(v) && output.level == Level::row) stage().rows.push_back(store(k, places_[v].kept));
      }
    }
    for (size_t k = 0; k < program_.outputs.size(); ++k) {
      const auto& output = program_.outputs[k];
      if (output.level != Level::row) continue;
      if (stage_ == 0) result_.row_outputs.push_back(static_cast<int>(k));
      if (stage_ == 0 && value(output.value).level == Level::number) stage().rows.push_back(store(k, places_[output.value].kept));
    }
  }

  void schedule_row(int v) {
    Place& place = places_[v];
    if (value(v).source == Source::input) {
      result_.row_inputs.push_back(value(v).operand[0]);
      Primitive* load = load_of(input_of(v).kind);
      place.kept = input_slot(v);
      if (load == nullptr) return;
      place.kept = row_slot();
      stage().rows.push_back(step(load, static_cast<uint16_t>(place.kept), {input_slot(v)}));
    } else if (is_sum(v)) {  // what its stage has summed up, in the value's own type
      const Type type = value(value(v).operand[0]).type;
      const Type summed = type_of_sum(value(v).op, type);
      Primitive* convert = summed == type ? copy_primitive(type) : plain_primitive(Operation::to_float32, summed);
      const int sum = place.kept;
      place.kept = row_slot();
      stage().rows.push_back(step(convert, static_cast<uint16_t>(place.kept), {sum}));
    } else {
      const uint16_t slot = row_slot();
      stage().rows.push_back(operation(v, slot));
      place.kept = slot;
    }
  }

  uint16_t block_slot(int64_t size) {
    result_.block_bytes += size;
    return add_slot(Home::block, size, registers_++);
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
    Place& place = places_[v];
    if (--place.uses > 0 || place.register_slot < 0) return;
    if (result_.slots[place.register_slot].home != Home::block || place.register_slot == place.expanded) return;
    free_[result_.slots[place.register_slot].size].push_back(static_cast<uint16_t>(place.register_slot));
  }

  // The slot in which an operand of elements lies side by side, or one that stands for all.
  void ready(int v) {
    if (value(v).level == Level::element) return emit(v);
    if (value(v).level != Level::row || places_[v].register_slot >= 0) return;
    // A slot of its own: of one row it is the row's, where nothing else may be written.
    Place& place = places_[v];
    if (place.expanded < 0) place.expanded = block_slot(program::size_of(value(v).type));
    place.register_slot = place.expanded;
    Step made = step(expand_primitive(value(v).type), static_cast<uint16_t>(place.expanded), {place.kept});
    made.expands = true;
    made.value = v;
    stage().elements.push_back(made);
  }

  // Computes v, unless that has been done.
  void emit(int v) {
    Place& place = places_[v];
    if (place.emitted == stage_ || is_here(v)) return;
    place.emitted = stage_;
    if (value(v).source == Source::input) return emit_input(v);
    for (int k = 0; k < operands(v); ++k) {
      if (can_be_inner(value(v).operand[k], v, k)) return emit_pair(value(v).operand[k], v, k);
    }
    for (int k = 0; k < operands(v); ++k) ready(value(v).operand[k]);
    Step made = operation(v, 0);
    const int twin = twin_of(v);
    made.value = v;
    made.twin = twin;
    for (int k = 0; k < operands(v); ++k) release(value(v).operand[k]);
    made.instruction.out = destination(v);
    if (twin >= 0) {
      places_[twin].emitted = stage_;
      release(value(twin).operand[0]);
      const uint16_t other = destination(twin);
      made.instruction.run = sincos_primitive(value(v).type);
      made.instruction.second = value(v).op == Operation::sin ? other : made.instruction.out;
      made.instruction.out = value(v).op == Operation::sin ? made.instruction.out : other;
    }
    stage().elements.push_back(made);
    if (is_dear(value(v).op) && program::is_floating(value(v).type)) ++stage().dear;
  }

  // Whether w, the k-th operand of v, is needed for nothing else, and both are one primitive's work.
  bool can_be_inner(int w, int v, int k) const {
    const Place& place = places_[w];
    const bool is_own = place.emitted != stage_ && place.uses == 1 && place.kept < 0;
    if (!is_own || value(w).level != Level::element || value(w).source != Source::operation) return false;
    return paired_primitive(value(w).op, value(v).op, k == 1, value(v).type) != nullptr;
  }

  void emit_pair(int w, int v, int k) {
    places_[w].emitted = stage_;
    const int used[] = {value(w).operand[0], value(w).operand[1], value(v).operand[1 - k]};
    for (const int u : used) ready(u);
    Step made = step(paired_primitive(value(w).op, value(v).op, k == 1, value(v).type), 0,
                     {slot_of(used[0]), slot_of(used[1]), slot_of(used[2])});
    made.value = v;
    made.inner = w;
    release(w);
    for (const int u : used) release(u);
    made.instruction.out = destination(v);
    stage().elements.push_back(made);
  }

  // The cosine of what v is the sine of, or the other way round, where that is needed in this stage too.
  int twin_of(int v) const {
    const Operation op = value(v).op;
    if (op != Operation::sin && op != Operation::cos) return -1;
    const Operation wanted = op == Operation::sin ? Operation::cos : Operation::sin;
    for (size_t w = 0; w < places_.size(); ++w) {
      const bool is_twin = value(w).source == Source::operation && value(w).op == wanted &&
                           value(w).operand[0] == value(v).operand[0];
      if (is_twin && places_[w].uses > 0 && places_[w].emitted != stage_ && !is_here(w)) return static_cast<int>(w);
    }
    return -1;
  }

  void emit_input(int v) {
    Place& place = places_[v];
    stage().inputs.push_back(value(v).operand[0]);
    place.register_slot = input_slot(v);
    Primitive* load = load_of(input_of(v).kind);
    if (load == nullptr) return;
    const uint16_t slot = destination(v);
    Step made = step(load, slot, {input_slot(v)});
    made.value = v;
    stage().elements.push_back(made);
  }

  // An output's own memory where that holds what is computed in; what stages share has its slot.
  uint16_t destination(int v) {
    Place& place = places_[v];
    const bool keeps = place.kept >= 0 && place.stage == stage_;
    if (keeps) return static_cast<uint16_t>(place.kept);
    for (size_t k = 0; k < program_.outputs.size() && place.stage == stage_; ++k) {
      const auto& output = program_.outputs[k];
      if (output.value != v || output.level != Level::element || store_of(output.kind) != nullptr) continue;
      place.register_slot = output_slot(k);
      return output_slot(k);
    }
    place.register_slot = take_register(program::size_of(value(v).type));
    return static_cast<uint16_t>(place.register_slot);
  }

  void emit_sum(int v) {
    const int operand = value(v).operand[0];
    ready(operand);
    const Type type = value(operand).type;
    places_[v].kept = sum_slot();
    Step made = step(reduction_primitive(value(v).op, type), static_cast<uint16_t>(places_[v].kept), {slot_of(operand)});
    made.value = v;
    stage().elements.push_back(made);
    stage().sums.push_back(static_cast<uint16_t>(places_[v].kept));
    stage().combine.push_back(combine_primitive(value(v).op, type_of_sum(value(v).op, type)));
    release(operand);
  }

  void emit_totals(int v) {
    if (places_[v].stage != stage_) return;
    for (size_t k = 0; k < program_.outputs.size(); ++k) {
      const auto& output = program_.outputs[k];
      if (output.value != v || output.level != Level::column) continue;
      ready(v);
      const uint16_t slot = add_slot(Home::total, sizeof(double), result_.totals.size());
      Step made = step(total_primitive(value(v).type), slot, {slot_of(v)});
      made.value = v;
      made.totals = true;
      stage().elements.push_back(made);
      result_.totals.push_back({slot, static_cast<int>(k)});
      release(v);
    }
  }

  // Into every output of v in which it does not lie already.
  void store_outputs(int v) {
    if (places_[v].stage != stage_) return;
    for (size_t k = 0; k < program_.outputs.size(); ++k) {
      const auto& output = program_.outputs[k];
      if (output.value != v || output.level != Level::element) continue;
      stage().outputs.push_back(static_cast<int>(k));
      ready(v);
      if (slot_of(v) != output_slot(k)) {
        stage().elements.push_back(store(k, slot_of(v)));
        stage().elements.back().value = v;
        stage().elements.back().output = static_cast<int>(k);
      }
      release(v);
    }
  }

  const Program& program_;
  Places places_;
  Schedule result_;
  int stage_ = 0;
  int numbers_ = 0;
  int rows_ = 0;
  int sums_ = 0;
  int kept_ = 0;
  int registers_ = 0;
  std::map<int64_t, std::vector<uint16_t>> free_;  // of the stage's registers, by the size of an element
  std::map<int64_t, std::vector<uint16_t>> all_;
};

}  // namespace

Schedule schedule(const program::Program& program) { return Scheduler(program).run(); }

}  // namespace fourfold::cpu
