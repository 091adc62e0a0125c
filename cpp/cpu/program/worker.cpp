#include "cpu/program/worker.h"

#include <cstring>

#include "cpu/program/column_sums.h"
#include "program/nests.h"

namespace fourfold::cpu {

using program::Level;
using program::Type;

Worker::Worker(const Invocation& of, const Worker* shared)
    : of_(of), schedule_(of.schedule), at_(schedule_.places.size()), own_(schedule_.places.size()) {
  lay_out(shared);
  if (shared == nullptr) {
    compute_numbers();
    return;
  }
  first_row_ = shared->first_row_;
  first_of_chunk_ = shared->first_of_chunk_;
}

void Worker::lay_out(const Worker* shared) {
  const int64_t block = schedule_.block, rows = of_.rows_of_block(), columns = rows == 1 ? std::max(block, of_.columns) : block;
  std::vector<int64_t> offsets(schedule_.places.size(), -1);
  int64_t bytes = 0;
  for (size_t k = 0; k < offsets.size(); ++k) {
    const auto [memory, size] = schedule_.places[k];
    const bool is_shared = memory == Memory::number || memory == Memory::row || memory == Memory::kept;
    if (memory == Memory::column_sum || (is_shared && shared != nullptr)) continue;
    const int64_t count = memory == Memory::kept                                ? columns
                          : memory == Memory::row || memory == Memory::total ? rows
                          : memory == Memory::number                         ? chunk
                                                                             : std::max(block, chunk);
    offsets[k] = bytes;
    bytes += (count * size + 63) / 64 * 64;
  }
  memory_.reset(static_cast<char*>(allocate(bytes, 1)));
  for (size_t k = 0; k < offsets.size(); ++k) {
    own_[k] = offsets[k] >= 0 ? memory_.get() + offsets[k] : shared != nullptr ? shared->own_[k] : nullptr;
    at_[k] = own_[k];
  }
  for (const int input : schedule_.row_inputs) {
    if (shared != nullptr) at_[input] = shared->at_[input];
  }
}

void Worker::compute_numbers() {
  const auto put = [&](int place, const void* number) {
    std::memcpy(at_[place], number, static_cast<size_t>(schedule_.places[place].size));
  };
  for (size_t k = 0; k < of_.program.inputs.size(); ++k) {
    if (of_.program.inputs[k].level == Level::number) at_[k] = static_cast<char*>(of_.inputs[k].data);
  }
  for (const Constant& constant : schedule_.constants) put(constant.place, &constant.bits);
  for (const Given& given : schedule_.given) give(given);
  for (const Step& step : schedule_.numbers) run(step, 1);
  for (size_t k = 0; k < at_.size(); ++k) {
    if (schedule_.places[k].memory == Memory::number) repeat_rows(schedule_.places[k].size, 1, chunk, at_[k], at_[k]);
  }
}

void Worker::give(const Given& given) {
  char* const to = at_[given.place];
  const auto put = [to](auto number) { std::memcpy(to, &number, sizeof number); };
  if (given.input >= 0) {
    std::memcpy(to, of_.inputs[given.input].data, static_cast<size_t>(schedule_.places[given.place].size));
    return;
  }
  switch (given.type) {
    case Type::int32: return put(static_cast<int32_t>(of_.columns));
    case Type::int64: return put(of_.columns);
    case Type::float32: return put(static_cast<float>(of_.columns));
    default: return put(static_cast<double>(of_.columns));
  }
}

void Worker::run_once() {
  for (const Step& step : schedule_.once) {
    at_[step.to] = static_cast<char*>(of_.tensor(step.to).data);
    run(step, 1);
  }
}

void Worker::add_to(double* sums, int64_t first_row) {
  first_of_chunk_ = first_row;
  for (const ColumnSum& sum : schedule_.column_sums) {
    own_[sum.place] = reinterpret_cast<char*>(sums);
    sums += ColumnSums::doubles(of_.columns);
  }
}

// Groups of rows_of_sum rows begin with the chunk, wherever blocks of rows begin.
void Worker::add_to_columns(const Step& step, int64_t columns) {
  const char* from = at_[step.from[0]];
  auto* const sums = reinterpret_cast<double*>(at_[step.to]);
  if (step.type != Type::float32) return add_rows(step.type, rows_, columns, from, sums);
  auto* const all = reinterpret_cast<double*>(own_[step.to]);
  float* const part = reinterpret_cast<float*>(all + of_.columns) + (sums - all);
  for (int64_t row = 0; row < rows_;) {
    const int64_t before = (first_row_ - first_of_chunk_ + row) % program::rows_of_sum;
    const int64_t count = std::min(rows_ - row, program::rows_of_sum - before);
    add_rows(step.type, count, columns, from, part);
    if (before + count == program::rows_of_sum) ColumnSums::settle(columns, part, sums);
    from += count * columns * static_cast<int64_t>(sizeof(float));
    row += count;
  }
}

void Worker::enter_rows(int64_t first, int64_t count) {
  first_row_ = first;
  rows_ = count;
  for (const int input : schedule_.row_inputs) bring(input, of_.rows, first, count);
  for (const int output : schedule_.row_outputs) make_room(output, of_.rows, first, count);
}

void Worker::run_rows(const Stage& stage) {
  for (const Step& step : stage.rows) run(step, rows_);
}

void Worker::leave_rows() {
  for (const int output : schedule_.row_outputs) put_back(output, of_.rows, first_row_, rows_);
}

void Worker::broadcast(const Stage& stage) {
  for (const auto& [from, to] : stage.broadcasts) {
    repeat_rows(schedule_.places[to].size, rows_, rows_ == 1 ? chunk : of_.columns, at_[from], at_[to]);
  }
}

void Worker::run_block(const Stage& stage, int64_t at, int64_t column, int64_t columns, bool starts) {
  const int64_t count = rows_ * columns;
  for (size_t k = 0; k < at_.size(); ++k) {
    const auto [memory, size] = schedule_.places[k];
    if (memory == Memory::kept || memory == Memory::column_sum) at_[k] = own_[k] + column * size;
  }
  if (count > 0) {  // tensors without elements may have no memory
    for (const int input : stage.inputs) bring(input, of_.elements, at, count);
    for (const int output : stage.outputs) make_room(output, of_.elements, at, count);
  }
  for (const Step& step : stage.elements) {
    const char* const from = at_[step.from[0]];
    if (step.kind == Step::Kind::reduce) {
      step.reduction.add(rows_, columns, from, starts, at_[step.to]);
    } else if (count > 0 && step.kind == Step::Kind::map) {
      run(step, count);
    } else if (count > 0) {
      add_to_columns(step, columns);
    }
  }
  for (const int output : stage.outputs) put_back(output, of_.elements, at, count);
}

void Worker::run(const Step& step, int64_t count) {
  const auto operand = [&](int place) {
    const Memory memory = schedule_.places[place].memory;
    return Operand{at_[place], memory == Memory::number || (memory == Memory::broadcast && rows_ == 1) ? 0 : 1};
  };
  const Operand from[] = {operand(step.from[0]), operand(step.from[1]), operand(step.from[2])};
  step.map(count, from, at_[step.to]);
}

bool Worker::overwrites_input(int place) const {
  const program::Tensor& output = of_.tensor(place);
  return std::any_of(of_.inputs, of_.inputs + of_.program.inputs.size(),
                     [&](const program::Tensor& input) { return input.data == output.data; });
}

void Worker::bring(int place, const Space& space, int64_t at, int64_t count) {
  char* const data = static_cast<char*>(of_.tensor(place).data);
  const int64_t size = schedule_.places[place].size, offset = space.contiguous(place, at, count);
  at_[place] = offset >= 0 ? data + offset * size : own_[place];
  if (offset < 0) space.gather(place, data, size, at, count, own_[place]);
}

// An output in the memory of an input, which steps may still read, is written at the end.
void Worker::make_room(int place, const Space& space, int64_t at, int64_t count) {
  const int64_t offset = overwrites_input(place) ? -1 : space.contiguous(place, at, count);
  at_[place] = offset >= 0 ? static_cast<char*>(of_.tensor(place).data) + offset * schedule_.places[place].size : own_[place];
}

void Worker::put_back(int place, const Space& space, int64_t at, int64_t count) {
  if (at_[place] != own_[place] || count == 0) return;
  space.scatter(place, own_[place], schedule_.places[place].size, at, count, of_.tensor(place).data);
}

}  // namespace fourfold::cpu
