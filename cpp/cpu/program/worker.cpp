#include "cpu/program/worker.h"

#include <cstring>

#include "cpu/memory.h"

namespace fourfold::cpu {

using program::Level;
using program::Type;

Worker::Worker(const Call& call, const Worker* shared)
    : call_(call), plan_(call.schedule), slots_(plan_.slots.size()), own_(plan_.slots.size()), scratch_(plan_.slots.size()),
      overwrites_(plan_.slots.size()),
      panels_(call.elements, tensors_across(), call.rows_of_panel(), call.panel_columns) {
  for (size_t k = 0; k < call.program.outputs.size(); ++k) overwrites_[output_slot(static_cast<int>(k))] = overwrites(static_cast<int>(k));
  lay_out(shared);
  frame_ = {slots_.data(), 1, 0, true};
  if (shared == nullptr) start();
}

void Worker::run_once() {
  for (const Step& step : plan_.once) step.instruction.run(frame_, 1, step.instruction);
}

void Worker::enter_panels(int64_t row, int64_t rows, int64_t column, int64_t columns) {
  if (!panels_.empty()) panels_.enter(row, rows, column, columns);
}

void Worker::leave_panels() {
  if (!panels_.empty()) panels_.leave();
}

void Worker::add_to(double* sums) {
  for (const ColumnSum& sum : plan_.column_sums) {
    own_[sum.slot] = reinterpret_cast<char*>(sums);
    sums += call_.columns;
  }
}

void Worker::enter_rows(int64_t first, int64_t count) {
  frame_.rows = count;
  first_row_ = first;
  for (const int input : plan_.row_inputs) bring(input, call_.rows, first, count);
  for (const int output : plan_.row_outputs) make_room(output_slot(output), call_.rows, first, count);
}

void Worker::run_rows(const Stage& stage) {
  for (const Step& step : stage.rows) step.instruction.run(frame_, frame_.rows, step.instruction);
}

void Worker::leave_rows() {
  for (const int output : plan_.row_outputs) put_back(output_slot(output), call_.rows, first_row_, frame_.rows);
}

void Worker::run_elements(const Stage& stage, int64_t at, int64_t columns, int64_t offset) {
  const int64_t count = frame_.rows * columns;
  frame_.columns = columns;
  if (count == 0) return run_sums(stage);
  for (const int input : stage.inputs) {
    if (!find_in_panels(input, at)) bring(input, call_.elements, at, count);
  }
  for (const int output : stage.outputs) {
    if (!find_in_panels(output_slot(output), at)) make_room(output_slot(output), call_.elements, at, count);
  }
  look_ahead(stage, count);
  for (const int k : materialized_) slots_[k].data = own_[k] + offset * plan_.slots[k].size;
  for (const ColumnSum& sum : plan_.column_sums) slots_[sum.slot].data = own_[sum.slot] + offset * int64_t(sizeof(double));
  for (const Step& step : stage.elements) {
    if (step.expands) {
      expand(step.instruction, count);
    } else {
      step.instruction.run(frame_, count, step.instruction);
    }
  }
  for (const int output : stage.outputs) put_back(output_slot(output), call_.elements, at, count);
}

std::vector<PanelTensor> Worker::tensors_across() const {
  std::vector<PanelTensor> result;
  if (call_.panel_columns == 0) return result;
  const auto add = [&](const auto& described, const program::Tensor* given, int first) {
    for (size_t k = 0; k < described.size(); ++k) {
      const int slot = first + static_cast<int>(k);
      const auto at = [&] { return PanelTensor{slot, plan_.slots[slot].size, static_cast<char*>(given[k].data), first > 0}; };
      if (described[k].level == Level::element) result.push_back(at());
    }
  };
  add(call_.program.inputs, call_.inputs, 0);
  add(call_.program.outputs, call_.outputs, output_slot(0));
  return result;
}

bool Worker::find_in_panels(int slot, int64_t at) {
  char* data = panels_.empty() ? nullptr : panels_.find(slot, at);
  if (data != nullptr) slots_[slot] = {data, 1};
  return data != nullptr;
}

void Worker::run_sums(const Stage& stage) {
  for (const Step& step : stage.elements) {
    if (plan_.slots[step.instruction.out].storage == Storage::sum) step.instruction.run(frame_, 0, step.instruction);
  }
}

void Worker::expand(const Instruction& made, int64_t count) {
  const Slot& row = slots_[made.in[0]];
  slots_[made.out] = frame_.rows == 1 ? Slot{row.data, 0} : Slot{own_[made.out], 1};
  if (frame_.rows > 1) made.run(frame_, count, made);
}

int Worker::output_slot(int output) const { return static_cast<int>(call_.program.inputs.size()) + output; }

void Worker::lay_out(const Worker* shared) {
  const int64_t rows = call_.rows_of_block();
  const int64_t materialized = std::max(call_.lanes, rows == 1 ? call_.columns : 0);
  int64_t bytes = 0;
  const auto take = [&bytes](int64_t count, int64_t size) {
    const int64_t at = bytes;
    bytes += (count * size + 63) / 64 * 64;
    return at;
  };
  std::vector<int64_t> at(slots_.size(), -1), scratch(slots_.size(), -1);
  for (size_t k = 0; k < slots_.size(); ++k) {
    const SlotPlan& slot = plan_.slots[k];
    if (slot.storage == Storage::input || slot.storage == Storage::output) {
      if (needs_scratch(static_cast<int>(k))) scratch[k] = take(std::max(call_.lanes, rows), slot.size);
    } else if (slot.storage == Storage::block) {
      at[k] = take(call_.lanes, slot.size);
    } else if (slot.storage == Storage::sum) {
      at[k] = take(rows, slot.size);
    } else if (slot.storage == Storage::column_sum) {
      continue;
    } else if (shared == nullptr) {
      at[k] = take(slot.storage == Storage::number ? 1 : slot.storage == Storage::row ? rows : materialized, slot.size);
    }
  }
  const int64_t panels = take(panels_.bytes(), 1);
  memory_.reset(static_cast<char*>(allocate(bytes, 1)));
  panels_.use(memory_.get() + panels);
  for (size_t k = 0; k < slots_.size(); ++k) {
    if (at[k] >= 0) own_[k] = memory_.get() + at[k];
    if (scratch[k] >= 0) scratch_[k] = memory_.get() + scratch[k];
    if (shared != nullptr && at[k] < 0) {
      slots_[k] = shared->slots_[k];
      own_[k] = shared->own_[k];
    } else {
      slots_[k] = {own_[k], plan_.slots[k].storage == Storage::number ? 0 : 1};
    }
    if (plan_.slots[k].storage == Storage::materialized) materialized_.push_back(static_cast<int>(k));
  }
}

bool Worker::overwrites(int output) const {
  if (call_.program.outputs[output].level != Level::element) return false;
  const auto is_overwritten = [&](int slot) {
    return slot < output_slot(0) && call_.program.inputs[slot].level == Level::element &&
           call_.inputs[slot].data == call_.outputs[output].data;
  };
  for (const Stage& stage : plan_.stages) {
    bool is_written = false;
    for (const auto& [instruction, expands] : stage.elements) {
      const auto& in = instruction.in;
      if (is_written && std::any_of(std::begin(in), std::end(in), is_overwritten)) return true;
      is_written |= instruction.out == output_slot(output) || instruction.second == output_slot(output);
    }
  }
  return false;
}

bool Worker::needs_scratch(int slot) const {
  const int inputs = static_cast<int>(call_.program.inputs.size());
  const Level level = slot < inputs ? call_.program.inputs[slot].level : call_.program.outputs[slot - inputs].level;
  return level == Level::element ? overwrites_[slot] || !call_.elements.side_by_side(slot)
                                 : level == Level::row && !call_.rows.side_by_side(slot);
}

void Worker::start() {
  for (const Constant& constant : plan_.constants) std::memcpy(own_[constant.slot], &constant.bits, sizeof constant.bits);
  for (const Given& given : plan_.given) give(given);
  for (size_t k = 0; k < call_.program.inputs.size(); ++k) {
    if (call_.program.inputs[k].level == Level::number) slots_[k] = {call_.inputs[k].data, 0};
  }
  for (size_t k = 0; k < call_.program.outputs.size(); ++k) {
    if (call_.program.outputs[k].level == Level::number) slots_[output_slot(static_cast<int>(k))] = {call_.outputs[k].data, 1};
  }
  for (const Step& step : plan_.numbers) step.instruction.run(frame_, 1, step.instruction);
}

void Worker::give(const Given& given) {
  char* to = own_[given.slot];
  if (given.input >= 0) {
    std::memcpy(to, call_.inputs[given.input].data, 8);
    return;
  }
  const auto put = [to](auto number) { std::memcpy(to, &number, sizeof number); };
  switch (given.type) {
    case Type::int32: return put(static_cast<int32_t>(call_.columns));
    case Type::int64: return put(call_.columns);
    case Type::float32: return put(static_cast<float>(call_.columns));
    default: return put(static_cast<double>(call_.columns));
  }
}

void Worker::look_ahead(const Stage& stage, int64_t count) {
  frame_.ahead_count = 0;
  if (stage.expensive == 0) return;
  const auto add = [&](int slot) {
    if (frame_.ahead_count == Frame::most_ahead || slots_[slot].stride == 0 || slots_[slot].data == scratch_[slot]) return;
    frame_.ahead[frame_.ahead_count++] = static_cast<const char*>(slots_[slot].data) + count * plan_.slots[slot].size;
  };
  for (const int input : stage.inputs) add(input);
  for (const int output : stage.outputs) add(output_slot(output));
  frame_.ahead_each = (frame_.ahead_count + stage.expensive - 1) / stage.expensive;
}

void Worker::bring(int slot, const Space& space, int64_t at, int64_t count) {
  const int64_t size = plan_.slots[slot].size;
  char* data = static_cast<char*>(call_.tensor(slot).data);
  const Space::Run run = space.find(slot, at, count);
  if (run.stride >= 0) {
    slots_[slot] = {data + run.offset * size, run.stride};
    return;
  }
  space.gather(slot, data, size, at, count, scratch_[slot]);
  slots_[slot] = {scratch_[slot], 1};
}

void Worker::make_room(int slot, const Space& space, int64_t at, int64_t count) {
  const Space::Run run = space.find(slot, at, count);
  char* data = static_cast<char*>(call_.tensor(slot).data);
  slots_[slot] = {run.stride == 1 && !overwrites_[slot] ? data + run.offset * plan_.slots[slot].size : scratch_[slot], 1};
}

void Worker::put_back(int slot, const Space& space, int64_t at, int64_t count) {
  if (slots_[slot].data != scratch_[slot] || scratch_[slot] == nullptr) return;
  space.scatter(slot, scratch_[slot], plan_.slots[slot].size, at, count, call_.tensor(slot).data);
}

}  // namespace fourfold::cpu
