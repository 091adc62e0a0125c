#include "cpu/program/loops.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <tuple>
#include <utility>

#include "cpu/kernels/transpose_tile.h"
#include "cpu/memory.h"
#include "cpu/parallel.h"
#include "cpu/program/column_sums.h"
#include "cpu/program/interpreter.h"
#include "program/axes.h"

namespace fourfold::cpu {
namespace {

using program::Level;
using program::Nest;
using program::nest_slack;
using program::Program;
using program::reduction_block;
namespace argument = program::argument;

constexpr int64_t parts_of_thread = 4;
constexpr int64_t fewest_of_chunk = 1024;
// Panels: rows of a transposed tensor that a thread transposes into its own memory.
constexpr int64_t usual_panel_rows = 32;
constexpr int64_t most_panel_columns = 256;     // if a row can be split
constexpr int64_t most_panel_elements = 1 << 17;
// Rows are short if they have at most so many columns, and if there are at least fewest_short_rows along one axis.
constexpr int64_t most_short_columns = 24;   // of a row with reductions
constexpr int64_t most_fixed_columns = 256;  // of a row whose number of columns is known to its nest
constexpr int64_t most_few_columns = 128;    // of rows side by side: a pass over every 16th stays in the caches
static_assert(most_fixed_columns <= reduction_block, "a group's sums have one block");
constexpr int64_t most_short_elements = 16;  // of an innermost axis
constexpr int64_t fewest_short_rows = 16;
// Threads share rows side by side in multiples of a cache line of float32, which is a multiple of a vector's lanes.
constexpr int64_t rows_of_line = 16;
// From this total size of a call's tensors on, outputs are evicted from the caches before they are read, and
// non-temporal stores pay: Adam's step took 0.70 of the time at 40 MB per tensor, a product 0.6, but 1.4 at 400 KB per
// tensor.
constexpr int64_t fewest_streamed_bytes = 20'000'000;
constexpr int64_t alignment = 64;   // of non-temporal stores
// The largest stride whose elements are picked from whole vectors.
constexpr int64_t most_interleaved = 8;

char digit(int64_t number) { return static_cast<char>('0' + number); }

std::unique_ptr<char, Release> scratch(int64_t bytes) {
  return std::unique_ptr<char, Release>(bytes == 0 ? nullptr : static_cast<char*>(allocate(bytes, 1)));
}

// Calls a nest's functions on one set of arguments.
class NestCall {
 public:
  // rows: how many the scratch memory of columns is for; 0 if threads share it.
  NestCall(const Nest& nest, const std::vector<int64_t>& arguments, int64_t grain, int64_t rows = 1)
      : nest_(nest), arguments_(arguments), grain_(grain),
        bytes_(nest.bytes + nest.bytes_of_column * rows * (arguments[argument::columns] + nest_slack) +
               nest.bytes_of_panel * (arguments[argument::panel_rows] * arguments[argument::panel_columns] + nest_slack)) {}

  // Runs a function that computes only scalars.
  void run_once(size_t function) const {
    if (nest_.functions[function] != nullptr) nest_.functions[function](0, 1, arguments_.data(), nullptr);
  }

  void run(size_t function, int64_t begin, int64_t end) const {
    if (begin == end || nest_.functions[function] == nullptr) return;
    const auto memory = scratch(bytes_);
    nest_.functions[function](begin, end, arguments_.data(), memory.get());
  }

  // Threads share `count` parts of `unit` elements. step, last: how far the function's range is from part to part, and
  // where it ends.
  void share(size_t function, int64_t count, int64_t unit, int64_t step = 1, int64_t last = most) const {
    if (nest_.functions[function] == nullptr) return;
    const int64_t least = std::max<int64_t>(1, grain_ / std::max<int64_t>(1, unit));
    const auto part = [&](int64_t begin, int64_t end) { run(function, begin * step, std::min(last, end * step)); };
    if (count <= least) return part(0, count);
    parallel(count, least, part);
  }

 private:
  static constexpr int64_t most = std::numeric_limits<int64_t>::max();

  const Nest& nest_;
  const std::vector<int64_t>& arguments_;
  int64_t grain_;
  int64_t bytes_;  // size of a thread's scratch memory
};

// Makes the column sums accumulate into `sums`.
void add_to(double* sums, std::vector<int64_t>& arguments, const Program& program, const Schedule& schedule) {
  for (const ColumnSum& sum : schedule.column_sums) {
    arguments[argument::first_tensor + program.inputs.size() + static_cast<size_t>(sum.output)] = reinterpret_cast<int64_t>(sums);
    sums += ColumnSums::doubles(arguments[argument::columns]);
  }
}

void run_row(const Nest& nest, std::vector<int64_t>& arguments, int64_t grain, int64_t this_row) {
  const int64_t columns = arguments[argument::columns];
  const int64_t count = (columns + reduction_block - 1) / reduction_block;
  const auto shared = scratch(nest.bytes_of_column * (columns + nest_slack));
  std::vector<int64_t> results(static_cast<size_t>(nest.sums * (count + 1)));
  arguments[argument::row] = this_row;
  arguments[argument::blocks] = count;
  arguments[argument::partials] = reinterpret_cast<int64_t>(results.data());
  arguments[argument::kept] = reinterpret_cast<int64_t>(shared.get());
  const NestCall call(nest, arguments, grain, 0);
  for (size_t k = 1; k < nest.functions.size(); k += 2) {
    call.share(k, count, reduction_block);
    call.run_once(k + 1);
  }
}

}  // namespace

Loops::Loops(const Program& program, const Schedule& schedule, const std::vector<int64_t>& sizes,
             const program::Tensor* inputs, const program::Tensor* outputs, bool streams, const fourfold_steps* steps)
    : program_(program), schedule_(schedule), axis_sizes_(sizes), grain_(grain(schedule)),
      cost_(schedule.cost), streams_(streams) {
  Strides strides;
  for (size_t k = 0; k < program.inputs.size(); ++k) {
    strides.push_back(program::axis_strides(program.inputs[k].dims, inputs[k].strides, sizes));
  }
  for (size_t k = 0; k < program.outputs.size(); ++k) {
    const auto& output = program.outputs[k];
    strides.push_back(output.level == Level::column ? std::vector<int64_t>(sizes.size())
                                                    : program::axis_strides(output.dims, outputs[k].strides, sizes));
  }
  program::Axes axes = program::merged_axes(program, sizes, strides);
  rows_ = axes.rows;
  columns_ = axes.columns;
  row_axes_ = axes.of_rows;
  sizes_ = std::move(axes.sizes);
  strides_ = std::move(axes.strides);
  const bool shares_row = steps == nullptr && threads_share_rows(program, rows_, columns_);
  if (program.has_rows) split_ = shares_row ? Split::columns : Split::rows;
  if (steps == nullptr) {
    order_rows();
    find_short_rows();
    find_rows_side_by_side();
  }
  find_transposed_axis();
  layout_ = static_cast<char>(split_) + std::to_string(row_axes_);
  const bool has_columns = split_ == Split::short_rows || (split_ == Split::rows && (steps != nullptr || has_few_columns()));
  if (has_columns) layout_ += 'x' + std::to_string(columns_);
  if (split_ == Split::side_by_side && columns_ <= most_few_columns) layout_ += 'f';
  if (transposed_ != no_axis) layout_ += 't' + std::to_string(transposed_);
  for (size_t t = 0; t < strides.size(); ++t) {
    layout_ += t == 0 ? ':' : ',';
    for (size_t a = 0; a < strides_.size(); ++a) {
      const int64_t stride = strides_[a][t];
      const bool is_whole = split_ == Split::short_rows && a + 1 == row_axes_ && stride == columns_ && columns_ > 1;
      layout_ += stride == 0               ? '0'
                 : is_whole                ? 'c'
                 : is_streamed(a, t)       ? '='
                 : stride == 1             ? '1'
                 : is_interleaved(a, t)    ? digit(stride)
                 : continues_columns(a, t) ? 'd'
                                           : 'n';
    }
  }
  arguments_.resize(argument::first_tensor + strides.size());
  arguments_[argument::columns] = columns_;
  arguments_.insert(arguments_.end(), sizes_.begin(), sizes_.end());
  for (const auto& stride : strides_) arguments_.insert(arguments_.end(), stride.begin(), stride.end());
  if (split_ == Split::elements) share_elements();
  arguments_[argument::panel_columns] = split_ == Split::elements ? arguments_[argument::chunk] : columns_;
  const int64_t most = std::max<int64_t>(1, most_panel_elements / std::max<int64_t>(1, arguments_[argument::panel_columns]));
  const int64_t rows = transposed_ == no_axis ? usual_panel_rows : sizes_[transposed_];
  const int64_t panels = std::max<int64_t>(1, (rows + usual_panel_rows / 2) / usual_panel_rows);  // of equal sizes
  arguments_[argument::panel_rows] = std::min(most, (rows + panels - 1) / panels);
  if (steps != nullptr) add_steps(*steps);
}

void Loops::add_steps(const fourfold_steps& steps) {
  const size_t inputs = program_.inputs.size(), outputs = program_.outputs.size();
  arguments_.push_back(steps.count);
  arguments_.insert(arguments_.end(), steps.input_strides, steps.input_strides + inputs);
  arguments_.insert(arguments_.end(), steps.output_strides, steps.output_strides + outputs);
  layout_ = program::steps_text(steps, inputs, outputs) + '/' + layout_;
  grain_ = std::max<int64_t>(1, grain_ / std::max<int64_t>(1, steps.count));
  cost_ *= std::max<int64_t>(1, steps.count);
}

// Whether a tensor has a small stride along the innermost axis, with other elements between.
bool Loops::is_interleaved(size_t axis, size_t tensor) const {
  const int64_t stride = strides_[axis][tensor];
  if (has_rows_together() || axis + 1 != strides_.size() || stride < 2 || stride > most_interleaved) return false;
  return std::none_of(strides_.begin(), strides_.end(), [&](const auto& of_axis) { return of_axis[tensor] == 1; });
}

// Whether a tensor's strides allow merging this column axis with the next one.
bool Loops::continues_columns(size_t axis, size_t tensor) const {
  if (!program_.has_rows || axis < row_axes_ || axis + 1 >= strides_.size()) return false;
  return strides_[axis][tensor] == strides_[axis + 1][tensor] * sizes_[axis + 1];
}

// Whether an output can be written by aligned non-temporal stores.
bool Loops::is_streamed(size_t axis, size_t tensor) const {
  const size_t inputs = program_.inputs.size();
  if (!streams_ || transposed_ != no_axis || axis + 1 != strides_.size() || tensor < inputs || strides_[axis][tensor] != 1) return false;
  if (has_rows_together() || split_ == Split::columns) return false;
  if (split_ == Split::rows && sizes_.size() != row_axes_ + 1) return false;  // unaligned parts of rows
  const program::Output& output = program_.outputs[tensor - inputs];
  const int64_t size = element_size(output.kind);
  if (output.level != Level::element || output.join >= 0 || size < 4) return false;
  return std::all_of(strides_.begin(), strides_.end() - 1, [&](const auto& of) { return of[tensor] * size % alignment == 0; });
}

bool Loops::is_large() const {
  int64_t bytes = 0;
  const auto add = [&](Kind kind, Level level) {
    if (level == Level::element) bytes += rows_ * columns_ * element_size(kind);
  };
  for (const program::Input& input : program_.inputs) add(input.kind, input.level);
  for (const program::Output& output : program_.outputs) add(output.kind, output.level);
  return bytes >= fewest_streamed_bytes;
}

bool Loops::can_stream(const program::Tensor* inputs, const program::Tensor* outputs) const {
  return std::all_of(outputs, outputs + program_.outputs.size(), [&](const program::Tensor& output) {
    const auto is_this = [&](const program::Tensor& input) { return input.data == output.data; };
    return reinterpret_cast<uintptr_t>(output.data) % alignment == 0 &&
           std::none_of(inputs, inputs + program_.inputs.size(), is_this);
  });
}

// Whether a nest is for this number of columns alone, because the program has no other one: rows with reductions are
// computed in groups then.
bool Loops::has_few_columns() const {
  const auto reduces = [](const program::Value& value) { return value.source == program::Source::operation && program::is_reduction(value.op); };
  if (row_axes_ == 0 || transposed_ != no_axis || std::none_of(program_.values.begin(), program_.values.end(), reduces)) return false;
  const auto first = program_.axes.begin() + program_.outer;
  const bool is_static = std::all_of(first, program_.axes.end(), [](const program::Axis& axis) { return axis.input < 0; });
  return is_static && columns_ <= most_fixed_columns && sizes_.size() == row_axes_ + 1;
}

// Short rows are computed across the innermost row axis: a long one takes its place, preferably one along which tensors
// are contiguous or broadcast. Without column sums the order of rows changes no result.
void Loops::order_rows() {
  const size_t count = program_.has_rows ? row_axes_ : sizes_.size() - 1;
  const bool are_short = sizes_.back() <= (program_.has_rows ? most_short_columns : most_short_elements);
  if (count < 2 || !are_short || sizes_[count - 1] >= fewest_short_rows || !schedule_.column_sums.empty()) return;
  const auto merit = [&](size_t axis) {
    const auto near = std::count_if(strides_[axis].begin(), strides_[axis].end(), [](int64_t s) { return s == 0 || s == 1; });
    return std::tuple(sizes_[axis] >= fewest_short_rows, near, sizes_[axis]);
  };
  size_t best = count - 1;
  for (size_t axis = 0; axis < count; ++axis) best = merit(axis) > merit(best) ? axis : best;
  const auto turn = [from = static_cast<std::ptrdiff_t>(best), to = static_cast<std::ptrdiff_t>(count)](auto& of_axes) {
    std::rotate(of_axes.begin() + from, of_axes.begin() + from + 1, of_axes.begin() + to);
  };
  turn(sizes_);
  turn(strides_);
}

// Chooses short_rows if there are few columns along one axis, and more rows than a vector has lanes.
void Loops::find_short_rows() {
  const bool has_column_sums = !schedule_.column_sums.empty();
  const int64_t columns = sizes_.back(), rows = sizes_.size() > 1 ? sizes_[sizes_.size() - 2] : 1;
  const bool is_one_axis = !program_.has_rows || sizes_.size() == row_axes_ + 1;
  const int64_t most = program_.has_rows ? most_short_columns : most_short_elements;
  if (has_column_sums || !is_one_axis || columns < 1 || columns > most || rows < fewest_short_rows) return;
  split_ = Split::short_rows;
  row_axes_ = sizes_.size() - 1;
  rows_ = rows_ * columns_ / columns;
  columns_ = columns;
}

// Chooses side_by_side if the columns are one axis and each tensor is contiguous along the rows, or broadcast over
// them; also for the longer ones of short rows.
void Loops::find_rows_side_by_side() {
  if (split_ == Split::short_rows && columns_ <= most_short_elements) return;
  if (!program_.has_rows || !schedule_.column_sums.empty() || row_axes_ == 0) return;
  if (sizes_.size() != row_axes_ + 1 || sizes_[row_axes_ - 1] < fewest_short_rows || columns_ < 2) return;
  const std::vector<int64_t>& of_rows = strides_[row_axes_ - 1];
  const std::vector<int64_t>& of_columns = strides_.back();
  const auto lies_so = [&](Level level, size_t t) {
    return level != Level::element || of_rows[t] == 1 || (of_rows[t] == 0 && of_columns[t] != 0);
  };
  bool any = false;
  const size_t inputs = program_.inputs.size();
  for (size_t k = 0; k < inputs + program_.outputs.size(); ++k) {
    const Level level = k < inputs ? program_.inputs[k].level : program_.outputs[k - inputs].level;
    if (!lies_so(level, k)) return;
    any = any || (level == Level::element && of_rows[k] == 1);
  }
  if (any) split_ = Split::side_by_side;
}

void Loops::find_transposed_axis() {
  for (size_t a = 0; a + 1 < strides_.size(); ++a) {
    for (size_t t = 0; t < strides_[a].size(); ++t) {
      if (strides_[a][t] == 1 && strides_.back()[t] > 1) transposed_ = a;
    }
  }
}

// Threads share the elements of a single axis, or else chunks of the innermost one.
void Loops::share_elements() {
  if (columns_ == 0) return;
  const int64_t rows = transposed_ == no_axis ? 1 : sizes_[transposed_];  // not split
  const int64_t inner = sizes_.back(), outer = columns_ / inner / rows;
  if (sizes_.size() == 1) {
    unit_ = alignment;
    units_ = (inner + unit_ - 1) / unit_;
    return;
  }
  const int64_t parts = parts_of_thread * torch_threads();
  const int64_t least = rows == 1 ? fewest_of_chunk : std::max<int64_t>(1, fewest_of_chunk / rows);
  int64_t length = outer >= parts ? inner : std::max(least, (inner + parts - 1) / parts);
  length = std::min(inner, (length + alignment - 1) / alignment * alignment);
  if (transposed_ != no_axis) length = std::min(length, most_panel_columns);
  arguments_[argument::chunk] = length;
  arguments_[argument::chunks] = (inner + length - 1) / length;
  units_ = outer * arguments_[argument::chunks];
  unit_ = length * rows;
}

std::vector<int64_t> Loops::arguments_of(const program::Tensor* inputs, const program::Tensor* outputs) const {
  std::vector<int64_t> arguments = arguments_;
  int64_t* address = &arguments[argument::first_tensor];
  for (size_t k = 0; k < program_.inputs.size(); ++k) *address++ = reinterpret_cast<int64_t>(inputs[k].data);
  for (size_t k = 0; k < program_.outputs.size(); ++k) *address++ = reinterpret_cast<int64_t>(outputs[k].data);
  return arguments;
}

int64_t Loops::rows_together() const {
  if (split_ != Split::side_by_side) return 1;
  const int64_t rows = std::min(program::rows_together, sizes_[row_axes_ - 1]);
  return (rows + rows_of_line - 1) / rows_of_line * rows_of_line;
}

int64_t Loops::rows_of_part() const { return split_ == Split::side_by_side ? rows_of_line : 1; }

int64_t Loops::row_parts() const { return (rows_ + rows_of_part() - 1) / rows_of_part(); }

int64_t Loops::parts(const Nest& nest) const {
  if (split_ == Split::columns || !schedule_.column_sums.empty() || nest.functions[0] != nullptr) return 1;
  const bool by_elements = split_ == Split::elements;
  const int64_t count = by_elements ? units_ : row_parts(), elements = by_elements ? unit_ : columns_ * rows_of_part();
  return std::clamp<int64_t>(count * elements / std::max<int64_t>(1, grain_), 1, std::max<int64_t>(1, count));
}

void Loops::run_part(const Nest& nest, const program::Tensor* inputs, const program::Tensor* outputs, int64_t part,
                     int64_t parts) const {
  const std::vector<int64_t> arguments = arguments_of(inputs, outputs);
  const NestCall call(nest, arguments, grain_, rows_together());
  if (split_ != Split::elements) {
    const auto row = [&](int64_t k) { return std::min(rows_, row_parts() * k / parts * rows_of_part()); };
    return call.run(1, row(part), row(part + 1));
  }
  const int64_t begin = units_ * part / parts, end = units_ * (part + 1) / parts;
  if (sizes_.size() > 1) return call.run(1, begin, end);
  call.run(1, std::min(columns_, begin * unit_), std::min(columns_, end * unit_));
}

void Loops::run(const Nest& nest, const program::Tensor* inputs, const program::Tensor* outputs) const {
  std::vector<int64_t> arguments = arguments_of(inputs, outputs);
  const NestCall call(nest, arguments, grain_, rows_together());
  call.run_once(0);
  if (split_ == Split::elements && sizes_.size() == 1) return call.share(1, units_, unit_, unit_, columns_);
  if (split_ == Split::elements) return call.share(1, units_, unit_);
  const bool by_rows = split_ == Split::rows || has_rows_together();
  if (by_rows && schedule_.column_sums.empty()) {
    return call.share(1, row_parts(), columns_ * rows_of_part(), rows_of_part(), rows_);
  }
  run_by_rows(nest, arguments, outputs);
}

void Loops::run_by_rows(const Nest& nest, std::vector<int64_t>& arguments, const program::Tensor* outputs) const {
  ColumnSums sums(program_, schedule_, axis_sizes_, outputs);
  const int64_t each = sums.empty() ? rows_ : sums.rows_of_chunk();
  if (split_ == Split::columns) {
    for (int64_t r = 0; r < rows_; ++r) {
      if (!sums.empty() && r % each == 0) add_to(sums.begin(r / each), arguments, program_, schedule_);
      run_row(nest, arguments, grain_, r);
      const bool is_last = r + 1 == rows_ || (r + 1) % each == 0;
      if (!sums.empty() && (is_last || (r % each + 1) % program::rows_of_sum == 0)) sums.settle(r / each);
    }
  } else {
    const int64_t least = std::max<int64_t>(1, grain_ / columns_ / each);
    parallel(sums.chunks(), least, [&](int64_t begin, int64_t end) {
      std::vector<int64_t> own = arguments;
      for (int64_t k = begin; k < end; ++k) {
        add_to(sums.begin(k), own, program_, schedule_);
        NestCall(nest, own, grain_).run(1, k * each, std::min(rows_, (k + 1) * each));
      }
    });
  }
  sums.finish();
}

}  // namespace fourfold::cpu

void fourfold_transpose_tile(
    int64_t size, const void* from, int64_t from_step, void* to, int64_t to_step, int64_t rows, int64_t columns) {
  fourfold::cpu::transpose_tile(size, from, from_step, to, to_step, rows, columns);
}
