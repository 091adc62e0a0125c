#include "cpu/program/run.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "cpu/memory.h"
#include "cpu/parallel.h"
#include "cpu/program/panels.h"
#include "cpu/program/space.h"
#include "cpu/program/totals.h"

namespace fourfold::cpu {
namespace {

using program::Level;
using program::Program;
using program::Type;

// What of a block's slots stays in the first-level cache, and the fewest elements of a block.
constexpr int64_t cache = 32768;
constexpr int64_t fewest = 256;
// Rows of a tensor from which on it is read where it lies, a row at a time, rather than copied.
constexpr int64_t long_row = 64;
// A thread's least share, in the time of so many additions; a tensor's element takes some of it to come from memory.
constexpr int64_t share = 200'000;
constexpr int64_t per_tensor = 4;
// Columns from which on a row is worth all threads.
constexpr int64_t long_columns = 16384;
// Of a panel, where a row may be cut.
constexpr int64_t panel_columns = 2048;

struct Call {
  const Program& program;
  const Schedule& schedule;
  const program::Tensor* inputs;
  const program::Tensor* outputs;
  Space elements;  // each tensor by its slot
  Space rows;
  int64_t row_count;
  int64_t columns;
  int64_t lanes;  // elements of a block
  int64_t panel_columns = 0;  // none: no panels

  const program::Tensor& tensor(int slot) const {
    const int count = static_cast<int>(program.inputs.size());
    return slot < count ? inputs[slot] : outputs[slot - count];
  }
  int64_t rows_of_panel() const { return panel_columns == 0 ? rows_of_block() : std::max(rows_of_block(), Panels::most_rows); }
  int64_t rows_of_block() const { return columns > lanes / 2 ? 1 : std::max<int64_t>(1, lanes / std::max<int64_t>(1, columns)); }
  int64_t grain() const {
    const int64_t tensors = static_cast<int64_t>(program.inputs.size() + program.outputs.size());
    return std::max<int64_t>(1, share / (schedule.cost + per_tensor * tensors));
  }
};

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};

// One thread's slots. Those for rows and what is kept for them may be another's, which works on the same row.
class Worker {
 public:
  Worker(const Call& call, const Worker* shared)
      : call_(call), plan_(call.schedule), slots_(plan_.slots.size()), own_(plan_.slots.size()), scratch_(plan_.slots.size()),
        panels_(call.elements, tensors_across(), call.rows_of_panel(), call.panel_columns) {
    lay_out(shared);
    frame_ = {slots_.data(), 1, 0, true};
    if (shared == nullptr) start();
  }

  Frame& frame() { return frame_; }
  Slot& slot(int k) { return slots_[k]; }

  void run_once() {
    for (const Step& step : plan_.once) step.instruction.run(frame_, 1, step.instruction);
  }

  // As many rows as panels have, of these columns, or all where there are no panels.
  void enter_panels(int64_t row, int64_t rows, int64_t column, int64_t columns) {
    if (!panels_.empty()) panels_.enter(row, rows, column, columns);
  }

  void leave_panels() {
    if (!panels_.empty()) panels_.leave();
  }

  // Where sums over rows are added to, `columns` of each.
  void add_to(double* totals) {
    for (const Total& total : plan_.totals) {
      own_[total.slot] = reinterpret_cast<char*>(totals);
      totals += call_.columns;
    }
  }

  void enter_rows(int64_t first, int64_t count) {
    frame_.rows = count;
    first_row_ = first;
    for (const int input : plan_.row_inputs) bring(input, call_.rows, first, count);
    for (const int output : plan_.row_outputs) make_room(output_slot(output), call_.rows, first, count);
  }

  void run_rows(const Stage& stage) {
    for (const Step& step : stage.rows) step.instruction.run(frame_, frame_.rows, step.instruction);
  }

  void leave_rows() {
    for (const int output : plan_.row_outputs) put_back(output_slot(output), call_.rows, first_row_, frame_.rows);
  }

  // Some columns of the rows that were entered; `offset`, how many of them have been before.
  void run_elements(const Stage& stage, int64_t at, int64_t columns, int64_t offset) {
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
    for (const int k : kept_) slots_[k].data = own_[k] + offset * plan_.slots[k].size;
    for (const Total& total : plan_.totals) slots_[total.slot].data = own_[total.slot] + offset * int64_t(sizeof(double));
    for (const Step& step : stage.elements) {
      if (step.expands) {
        expand(step.instruction, count);
      } else if (stage.compiled == nullptr) {
        step.instruction.run(frame_, count, step.instruction);
      }
    }
    if (stage.compiled != nullptr) stage.compiled(frame_, count);
    for (const int output : stage.outputs) put_back(output_slot(output), call_.elements, at, count);
  }

 private:
  // What panels may hold: nothing, where a call has none.
  std::vector<PanelTensor> tensors_across() const {
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

  bool find_in_panels(int slot, int64_t at) {
    char* data = panels_.empty() ? nullptr : panels_.find(slot, at);
    if (data != nullptr) slots_[slot] = {data, 1};
    return data != nullptr;
  }

  // Rows without columns, whose tensors may have no memory to read.
  void run_sums(const Stage& stage) {
    for (const Step& step : stage.elements) {
      if (plan_.slots[step.instruction.out].home == Home::sum) step.instruction.run(frame_, 0, step.instruction);
    }
  }

  void expand(const Instruction& made, int64_t count) {
    const Slot& row = slots_[made.in[0]];
    slots_[made.out] = frame_.rows == 1 ? Slot{row.data, 0} : Slot{own_[made.out], 1};
    if (frame_.rows > 1) made.run(frame_, count, made);
  }

  int output_slot(int output) const { return static_cast<int>(call_.program.inputs.size()) + output; }

  // Of the slots that have memory of the worker's own, the place in it.
  void lay_out(const Worker* shared) {
    const int64_t rows = call_.rows_of_block();
    const int64_t kept = std::max(call_.lanes, rows == 1 ? call_.columns : 0);
    int64_t bytes = 0;
    const auto take = [&bytes](int64_t count, int64_t size) {
      const int64_t at = bytes;
      bytes += (count * size + 63) / 64 * 64;
      return at;
    };
    std::vector<int64_t> at(slots_.size(), -1), scratch(slots_.size(), -1);
    for (size_t k = 0; k < slots_.size(); ++k) {
      const SlotPlan& slot = plan_.slots[k];
      if (slot.home == Home::input || slot.home == Home::output) {
        if (needs_scratch(static_cast<int>(k))) scratch[k] = take(std::max(call_.lanes, rows), slot.size);
      } else if (slot.home == Home::block) {
        at[k] = take(call_.lanes, slot.size);
      } else if (slot.home == Home::sum) {
        at[k] = take(rows, slot.size);
      } else if (slot.home == Home::total) {
        continue;
      } else if (shared == nullptr) {
        at[k] = take(slot.home == Home::number ? 1 : slot.home == Home::row ? rows : kept, slot.size);
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
        slots_[k] = {own_[k], plan_.slots[k].home == Home::number ? 0 : 1};
      }
      if (plan_.slots[k].home == Home::kept) kept_.push_back(static_cast<int>(k));
    }
  }

  bool needs_scratch(int slot) const {
    const int inputs = static_cast<int>(call_.program.inputs.size());
    const Level level = slot < inputs ? call_.program.inputs[slot].level : call_.program.outputs[slot - inputs].level;
    return level == Level::element ? !call_.elements.side_by_side(slot)
                                   : level == Level::row && !call_.rows.side_by_side(slot);
  }

  // What is the same for all elements.
  void start() {
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

  void give(const Given& given) {
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

  // Where the next block lies: the first operation that takes long fetches it meanwhile. Measured on silu(x) * y and its
  // gradient at a million elements: 8 to 14 % of the time.
  void look_ahead(const Stage& stage, int64_t count) {
    frame_.ahead_count = 0;
    const auto add = [&](int slot) {
      if (frame_.ahead_count == Frame::most_ahead || slots_[slot].stride == 0 || slots_[slot].data == scratch_[slot]) return;
      frame_.ahead[frame_.ahead_count++] = static_cast<const char*>(slots_[slot].data) + count * plan_.slots[slot].size;
    };
    for (const int input : stage.inputs) add(input);
    for (const int output : stage.outputs) add(output_slot(output));
    frame_.ahead_each = stage.dear == 0 ? 0 : (frame_.ahead_count + stage.dear - 1) / stage.dear;
  }

  void bring(int slot, const Space& space, int64_t at, int64_t count) {
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

  void make_room(int slot, const Space& space, int64_t at, int64_t count) {
    const Space::Run run = space.find(slot, at, count);
    char* data = static_cast<char*>(call_.tensor(slot).data);
    slots_[slot] = {run.stride == 1 ? data + run.offset * plan_.slots[slot].size : scratch_[slot], 1};
  }

  void put_back(int slot, const Space& space, int64_t at, int64_t count) {
    if (slots_[slot].data != scratch_[slot] || scratch_[slot] == nullptr) return;
    space.scatter(slot, scratch_[slot], plan_.slots[slot].size, at, count, call_.tensor(slot).data);
  }

  const Call& call_;
  const Schedule& plan_;
  std::vector<Slot> slots_;
  std::vector<char*> own_;
  std::vector<char*> scratch_;  // for the elements of a tensor that don't lie side by side
  std::vector<int> kept_;
  Panels panels_;
  std::unique_ptr<char, Free> memory_;
  Frame frame_{};
  int64_t first_row_ = 0;
};

// Some rows, all stages: their columns from `first` to `last`.
void run_rows(const Call& call, Worker& worker, int64_t row, int64_t rows, int64_t first, int64_t last) {
  worker.enter_rows(row, rows);
  for (const Stage& stage : call.schedule.stages) {
    worker.run_rows(stage);
    const int64_t step = call.rows_of_block() > 1 ? call.columns : call.lanes;
    int64_t column = first;
    do {
      const int64_t columns = std::min(step, last - column);
      worker.frame().first = column == 0;
      worker.run_elements(stage, row * call.columns + column, columns, column);
      column += columns;
    } while (column < last);
  }
  worker.leave_rows();
}

// Each thread takes whole rows, or what panels hold of them, or a chunk of those that are added up.
void run_by_rows(const Call& call, Totals& totals) {
  const int64_t block = call.rows_of_block();
  const int64_t panel = call.rows_of_panel();
  const int64_t step = call.panel_columns == 0 ? call.columns : call.panel_columns;
  const int64_t together = totals.empty() ? panel : totals.rows_of_chunk();
  const int64_t grain = std::max<int64_t>(1, call.grain() / std::max<int64_t>(1, call.columns) / together);
  parallel((call.row_count + together - 1) / together, grain, [&](int64_t begin, int64_t end) {
    Worker worker(call, nullptr);
    const int64_t last = std::min(call.row_count, end * together);
    for (int64_t row = begin * together, rows = 0; row < last; row += rows) {
      if (!totals.empty()) worker.add_to(totals.chunk(row / together));
      rows = std::min({panel, last - row, together - row % together});
      if (call.panel_columns > 0) rows = std::min(rows, call.elements.rows_left(row));
      int64_t column = 0;
      do {
        const int64_t columns = std::min(step, call.columns - column);
        worker.enter_panels(row, rows, column, columns);
        for (int64_t k = 0; k < rows; k += block) {
          run_rows(call, worker, row + k, std::min(block, rows - k), column, column + columns);
        }
        worker.leave_panels();
        column += columns;
      } while (column < call.columns);
    }
  });
}

// Blocks of one row, and what each has summed up.
class Partials {
 public:
  Partials(const Stage& stage, int64_t blocks) : stage_(stage), blocks_(blocks), values_(stage.sums.size() * blocks) {}

  void keep(Worker& worker, int64_t block) {
    for (size_t k = 0; k < stage_.sums.size(); ++k) std::memcpy(&values_[k * blocks_ + block], worker.slot(stage_.sums[k]).data, 8);
  }

  // In the order of the blocks, whichever thread computed them.
  void combine(Worker& whole) {
    for (size_t k = 0; k < stage_.sums.size(); ++k) {
      uint64_t* values = &values_[k * blocks_];
      Slot slots[2] = {{whole.slot(stage_.sums[k]).data, 1}, {nullptr, 1}};
      std::memcpy(slots[0].data, values, 8);
      Frame frame{slots, 1, 1, false};
      for (int64_t b = 1; b < blocks_; ++b) {
        slots[1].data = &values[b];
        stage_.combine[k](frame, 1, Instruction{nullptr, 0, 0, {1, 0, 0}});
      }
    }
  }

 private:
  const Stage& stage_;
  int64_t blocks_;
  std::vector<uint64_t> values_;
};

// All threads work on one row after the other, stage by stage.
void run_by_columns(const Call& call, Totals& totals) {
  Worker whole(call, nullptr);
  const int64_t blocks = std::max<int64_t>(1, (call.columns + call.lanes - 1) / call.lanes);
  const int64_t grain = std::max<int64_t>(1, call.grain() / call.lanes);
  const int64_t row_length = call.elements.row();
  for (int64_t row = 0; row < call.row_count; ++row) {
    if (!totals.empty()) whole.add_to(totals.chunk(row / totals.rows_of_chunk()));
    if (call.program.has_rows) whole.enter_rows(row, 1);
    for (const Stage& stage : call.schedule.stages) {
      whole.run_rows(stage);
      Partials partials(stage, blocks);
      parallel(blocks, grain, [&](int64_t begin, int64_t end) {
        Worker worker(call, &whole);
        for (int64_t block = begin; block < end; ++block) {
          const int64_t last = std::min(call.columns, (block + 1) * call.lanes);
          worker.frame().first = true;
          int64_t column = block * call.lanes;
          do {
            const int64_t at = row * call.columns + column;
            const int64_t left = row_length >= long_row ? call.elements.left_of_row(at) : last - column;
            const int64_t columns = std::min(left, last - column);
            worker.run_elements(stage, at, columns, column);
            worker.frame().first = false;
            column += columns;
          } while (column < last);
          partials.keep(worker, block);
        }
      });
      partials.combine(whole);
    }
    if (call.program.has_rows) whole.leave_rows();
  }
}

bool lies_across(const Call& call) {
  const size_t count = call.program.inputs.size() + call.program.outputs.size();
  for (size_t k = 0; k < count; ++k) {
    if (call.elements.lies_across(k)) return true;
  }
  return false;
}

// Where rows are worked on by one thread each, or may be. What is no reduction's row is one of the innermost axis.
void use_panels(Call& call, bool by_rows) {
  const int64_t row = call.elements.row();
  if (call.program.has_rows) {
    if (by_rows && row == call.columns) call.panel_columns = call.columns;
  } else if (call.columns / row >= Panels::most_rows * torch_threads()) {
    call.row_count = call.columns / row;
    call.columns = row;
    call.panel_columns = std::min(row, panel_columns);
  }
}

std::vector<std::vector<int64_t>> strides_of(const Program& program, const std::vector<int64_t>& sizes,
                                             const program::Tensor* inputs, const program::Tensor* outputs, Level level) {
  std::vector<std::vector<int64_t>> result;
  const auto add = [&](const std::vector<program::Dim>& dims, Level own, const int64_t* strides) {
    result.push_back(own == level ? program::axis_strides(dims, strides, sizes) : std::vector<int64_t>(sizes.size()));
    if (level == Level::row) result.back().resize(program.outer);
  };
  for (size_t k = 0; k < program.inputs.size(); ++k) add(program.inputs[k].dims, program.inputs[k].level, inputs[k].strides);
  for (size_t k = 0; k < program.outputs.size(); ++k) add(program.outputs[k].dims, program.outputs[k].level, outputs[k].strides);
  return result;
}

}  // namespace

void run(const Program& program, const Schedule& schedule, const std::vector<int64_t>& sizes,
         const program::Tensor* inputs, const program::Tensor* outputs) {
  const std::vector<int64_t> outer(sizes.begin(), sizes.begin() + program.outer);
  Call call{program,
            schedule,
            inputs,
            outputs,
            Space(sizes, strides_of(program, sizes, inputs, outputs, Level::element)),
            Space(outer, strides_of(program, sizes, inputs, outputs, Level::row)),
            1,
            1,
            0};
  if (program.has_rows) call.row_count = call.rows.numel();
  for (size_t a = program.outer; a < sizes.size(); ++a) call.columns *= sizes[a];
  const int64_t streams = 4 * static_cast<int64_t>(program.inputs.size() + program.outputs.size());
  call.lanes = std::clamp(cache / std::max<int64_t>(1, schedule.block_bytes + streams) / 64 * 64, fewest, most_elements);
  if (!schedule.once.empty()) Worker(call, nullptr).run_once();
  Totals totals(program, schedule, sizes, outputs);
  if (call.row_count == 0) return totals.finish();
  if (call.columns == 0 && !program.has_rows) return;
  const bool few_rows = call.row_count < torch_threads() && call.columns >= long_columns;
  const bool by_rows = program.has_rows && !few_rows;
  if (lies_across(call)) use_panels(call, by_rows);
  by_rows || call.panel_columns > 0 ? run_by_rows(call, totals) : run_by_columns(call, totals);
  totals.finish();
}

}  // namespace fourfold::cpu
