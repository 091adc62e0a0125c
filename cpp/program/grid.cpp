#include "program/grid.h"

#include <algorithm>
#include <cstdlib>
#include <limits>

namespace fourfold::program {
namespace {

constexpr int64_t threads = grid::threads, neighbours = grid::neighbours, parts_of_rows = grid::parts_of_rows;
constexpr int64_t vector_bytes = 16;
constexpr int64_t most_blocks = 1 << 13;  // a kernel with more tiles loops over them
constexpr int64_t most_registers = 128;   // limit for the vectors of a row that a thread holds
constexpr int64_t rows_in_flight = 4;     // of a group of threads, in kernels that also sum columns
constexpr int64_t most_each = 8;
constexpr int64_t most_long_group = 1024;
// Several blocks share a row if there are fewer than few_blocks blocks and a row takes at least fewest_rounds rounds of
// its threads.
constexpr int64_t few_blocks = 64;
constexpr int64_t fewest_rounds = 8;
constexpr int64_t wanted_blocks = 256;
constexpr int64_t lanes_of_long = 2;      // of programs of elements with more than 64 values
constexpr int64_t fewest_side_by_side = 16;

int64_t divided(int64_t a, int64_t b) { return (a + b - 1) / b; }

int64_t power_of_two(int64_t least) {
  int64_t power = 1;
  while (power < least) power *= 2;
  return power;
}

const char* name_of(GridSplit split) {
  constexpr const char* names[] = {"elements", "rows", "side", "columns"};
  return names[static_cast<int>(split)];
}

int count_reductions(const Program& program) {
  return static_cast<int>(std::count_if(program.values.begin(), program.values.end(), [](const Value& value) {
    return value.source == Source::operation && is_reduction(value.op);
  }));
}

int count_column_sums(const Program& program) {
  return static_cast<int>(std::count_if(program.outputs.begin(), program.outputs.end(),
                                        [](const Output& output) { return output.level == Level::column; }));
}

}  // namespace

GridLayout::GridLayout(const Program& program, const std::vector<int64_t>& sizes, const Tensor* inputs, const Tensor* outputs,
                       bool is_aligned, const fourfold_steps* steps)
    : program_(program) {
  std::vector<std::vector<int64_t>> strides;
  for (size_t k = 0; k < program.inputs.size(); ++k) {
    strides.push_back(axis_strides(program.inputs[k].dims, inputs[k].strides, sizes));
  }
  for (size_t k = 0; k < program.outputs.size(); ++k) {
    strides.push_back(axis_strides(program.outputs[k].dims, outputs[k].strides, sizes));
  }
  axes_ = merged_axes(program, sizes, strides);
  choose_split(steps != nullptr);
  choose_lanes(is_aligned, steps);
  if (split_ == GridSplit::elements) {
    copies_ = program.values.size() > 48 || steps != nullptr ? 1 : 2;
    blocks_ = std::min(most_blocks, divided(axes_.columns, threads * copies_ * lanes_));
  } else if (split_ == GridSplit::columns) {
    share_columns();
  } else {
    share_rows();
  }
  find_width(steps);
  write_text(steps);
}

// Calls f(kind, tensor) for each tensor that has an element for each point of the iteration space.
template <typename F>
void GridLayout::for_elements(const F& f) const {
  const size_t inputs = program_.inputs.size();
  for (size_t k = 0; k < inputs; ++k) {
    if (program_.inputs[k].level == Level::element) f(program_.inputs[k].kind, k);
  }
  for (size_t k = 0; k < program_.outputs.size(); ++k) {
    if (program_.outputs[k].level == Level::element) f(program_.outputs[k].kind, inputs + k);
  }
}

int64_t GridLayout::step_stride(const fourfold_steps& steps, size_t tensor) const {
  const size_t inputs = program_.inputs.size();
  return tensor < inputs ? steps.input_strides[tensor] : steps.output_strides[tensor - inputs];
}

void GridLayout::choose_split(bool is_loop) {
  if (!program_.has_rows) return;
  const bool has_reductions = count_reductions(program_) > 0, has_sums = count_column_sums(program_) > 0;
  split_ = has_sums && !has_reductions ? GridSplit::columns : GridSplit::rows;
  if (has_sums || is_loop || axes_.of_rows == 0 || axes_.sizes[axes_.of_rows - 1] < fewest_side_by_side || axes_.columns < 2) return;
  if (axes_.count() != axes_.of_rows + 1) return;
  bool any = false, all = true;
  for_elements([&](Kind, size_t t) {
    const int64_t of_rows = axes_.strides[axes_.of_rows - 1][t], of_columns = axes_.strides.back()[t];
    any = any || (of_rows == 1 && of_columns != 0);
    all = all && (of_rows == 1 || of_rows == 0);
  });
  if (any && all) split_ = GridSplit::side;
}

// Whether each tensor is either contiguous in aligned vectors along the innermost axis, or constant there.
bool GridLayout::vectors_fit(int64_t lanes, const fourfold_steps* steps) const {
  if (axes_.sizes.back() % lanes != 0 && (axes_.count() > 1 || split_ != GridSplit::elements)) return false;
  bool fit = true;
  for_elements([&](Kind kind, size_t t) {
    const int64_t inner = axes_.strides.back()[t], bytes = std::min(vector_bytes, lanes * element_size(kind));
    fit = fit && (inner == 0 || inner == 1);
    for (size_t a = 0; inner == 1 && a + 1 < axes_.count(); ++a) fit = fit && axes_.strides[a][t] * element_size(kind) % bytes == 0;
    if (inner == 1 && steps != nullptr) fit = fit && step_stride(*steps, t) * element_size(kind) % bytes == 0;
  });
  return fit;
}

// Chooses vectors of 16 bytes of the narrowest dtype, ignoring 1-byte dtypes if there are wider ones. Long programs use
// fewer lanes, so that their values fit the registers. Those of elements use even fewer: each division, logarithm or
// error function branches, so that a thread's lanes hide no latency, and more threads have to.
void GridLayout::choose_lanes(bool is_aligned, const fourfold_steps* steps) {
  if (!is_aligned || split_ == GridSplit::side) return;
  int64_t narrowest = 8, widest = 1;
  for_elements([&](Kind kind, size_t t) {
    if (axes_.strides.back()[t] == 0) return;
    const int64_t size = element_size(kind);
    widest = std::max(widest, size);
    if (size > 1) narrowest = std::min(narrowest, size);
  });
  if (widest == 1) narrowest = 1;
  const bool is_of_elements = split_ == GridSplit::elements && steps == nullptr;
  const size_t values = program_.values.size();
  const int64_t most = values > 200 ? 2 : values > 64 ? is_of_elements ? lanes_of_long : 4 : 16;
  for (int64_t lanes = std::min(most, vector_bytes / narrowest); lanes > 1; lanes /= 2) {
    if (!vectors_fit(lanes, steps)) continue;
    lanes_ = lanes;
    return;
  }
}

void GridLayout::share_rows() {
  const bool has_row_per_lane = split_ == GridSplit::side;
  const int sums = count_column_sums(program_);
  const int64_t vectors = divided(axes_.columns, lanes_);
  // Operands that all rows share don't count: they are loaded before the loop over rows if they fit (nest/grid/rows.py),
  // or in each stage.
  int64_t tensors = 1;
  for_elements([&](Kind, size_t t) {
    bool varies = axes_.of_rows == 0;
    for (size_t a = 0; a < axes_.of_rows; ++a) varies = varies || axes_.strides[a][t] != 0;
    tensors += varies ? 1 : 0;
  });
  const int64_t most = std::clamp<int64_t>(most_registers / (lanes_ * (tensors + sums)), 1, most_each);
  copies_ = program_.values.size() > 48 ? 1 : 2;
  if (has_row_per_lane) {
    group_ = vectors <= 2 ? 1 : parts_of_rows;
  } else if (vectors <= neighbours * most && sums == 0) {
    group_ = std::min(neighbours, power_of_two(vectors));
  } else if (vectors <= neighbours) {
    group_ = power_of_two(vectors);
  } else {
    group_ = std::clamp(power_of_two(divided(vectors, most)), threads, most_long_group);
  }
  each_ = divided(vectors, group_) <= most ? divided(vectors, group_) : 0;
  const int64_t of_block = group_ > neighbours ? threads : grid::threads_of_rows;
  const int64_t rows_of_block = has_row_per_lane ? neighbours : std::max<int64_t>(1, of_block / group_);
  const int64_t groups = divided(axes_.rows, rows_of_block);
  if (sums > 0) {
    blocks_ = std::min(groups, wanted_blocks);
    if (each_ > 0) {
      copies_ = std::clamp<int64_t>(most_registers / (lanes_ * each_ * (tensors + sums)), 1, rows_in_flight);
      if (program_.values.size() > 48 || groups < blocks_ * copies_) copies_ = 1;
    }
    chunks_ = blocks_ * rows_of_block;
    scratch_bytes_ = sums * chunks_ * axes_.columns * grid::bytes_of_part;
    return;
  }
  blocks_ = std::min(most_blocks, groups);
  const int64_t rounds = divided(vectors, group_);
  if (groups >= few_blocks || rounds < fewest_rounds) return;
  is_split_ = true;
  each_ = 0;
  if (!has_row_per_lane) group_ = threads;
  const int64_t wanted = std::min(divided(wanted_blocks, std::max<int64_t>(1, groups)), divided(vectors, 2 * group_));
  chunk_ = divided(divided(vectors, std::max<int64_t>(1, wanted)), group_) * group_;
  chunks_ = divided(vectors, chunk_);
  const int64_t row_groups = divided(axes_.rows, has_row_per_lane ? neighbours : 1);
  blocks_ = row_groups * chunks_;
  scratch_bytes_ = count_reductions(program_) * axes_.rows * chunks_ * grid::bytes_of_part;
}

void GridLayout::share_columns() {
  group_ = parts_of_rows;
  copies_ = program_.values.size() > 32 ? 1 : 4;
  const int64_t vectors = divided(axes_.columns, lanes_), groups = divided(vectors, neighbours);
  const int64_t wanted = std::clamp<int64_t>(wanted_blocks * 2 / std::max<int64_t>(1, groups), 1, divided(axes_.rows, 4 * parts_of_rows));
  chunk_ = std::max<int64_t>(1, divided(axes_.rows, std::max<int64_t>(1, wanted)));
  chunks_ = std::max<int64_t>(1, divided(axes_.rows, chunk_));
  is_split_ = chunks_ > 1;
  blocks_ = groups * chunks_;
  if (is_split_) scratch_bytes_ = count_column_sums(program_) * chunks_ * axes_.columns * grid::bytes_of_part;
}

// Indices have 64 bits if an offset, or the loop over tiles, may exceed 32 bits.
void GridLayout::find_width(const fourfold_steps* steps) {
  constexpr int64_t most = std::numeric_limits<int32_t>::max() / 2;
  is_wide_ = axes_.rows * std::max<int64_t>(1, axes_.columns) > most || scratch_bytes_ > most;
  const size_t tensors = program_.inputs.size() + program_.outputs.size();
  for (size_t t = 0; t < tensors && axes_.rows * axes_.columns > 0; ++t) {
    int64_t last = 0;
    for (size_t a = 0; a < axes_.count(); ++a) last += (axes_.sizes[a] - 1) * axes_.strides[a][t];
    if (steps != nullptr) {
      last += steps->count * std::abs(step_stride(*steps, t));
    }
    is_wide_ = is_wide_ || last > most;
  }
}

std::string GridLayout::class_of(size_t tensor) const {
  std::string text;
  const size_t inputs = program_.inputs.size();
  const bool is_element = (tensor < inputs ? program_.inputs[tensor].level : program_.outputs[tensor - inputs].level) == Level::element;
  for (size_t a = 0; a < axes_.count(); ++a) {
    const int64_t stride = axes_.strides[a][tensor];
    const bool is_inner = a + 1 == axes_.count();
    text += stride == 0                                           ? '0'
            : stride == 1 && is_inner && lanes_ > 1 && is_element ? 'v'
            : axes_.continues(a, tensor)                          ? 'd'
            : stride == 1                                         ? '1'
                                                                  : 'n';
  }
  return text;
}

void GridLayout::write_text(const fourfold_steps* steps) {
  const auto add = [this](const char* name, int64_t number) {
    text_ += ' ';
    text_ += name;
    text_ += '=';
    text_ += std::to_string(number);
  };
  if (steps != nullptr) {
    text_ = steps_text(*steps, program_.inputs.size(), program_.outputs.size());
    text_ += '/';
    steps_.push_back(steps->count);
    steps_.insert(steps_.end(), steps->input_strides, steps->input_strides + program_.inputs.size());
    steps_.insert(steps_.end(), steps->output_strides, steps->output_strides + program_.outputs.size());
  }
  text_ += "grid ";
  text_ += name_of(split_);
  add("rows", static_cast<int64_t>(axes_.of_rows));
  add("lanes", lanes_);
  add("copies", copies_);
  add("group", group_);
  add("each", each_);
  add("split", is_split_);
  add("wide", is_wide_);
  const size_t tensors = program_.inputs.size() + program_.outputs.size();
  for (size_t t = 0; t < tensors; ++t) {
    text_ += t == 0 ? ':' : ',';
    text_ += class_of(t);
  }
}

std::vector<int64_t> GridLayout::numbers(const Tensor* inputs) const {
  std::vector<int64_t> numbers{axes_.rows, axes_.columns, chunk_, chunks_};  // grid::arguments
  numbers.insert(numbers.end(), axes_.sizes.begin(), axes_.sizes.end());
  for (const auto& strides : axes_.strides) numbers.insert(numbers.end(), strides.begin(), strides.end());
  numbers.insert(numbers.end(), steps_.begin(), steps_.end());
  for (size_t k = 0; k < program_.inputs.size(); ++k) {
    if (program_.inputs[k].is_number) numbers.push_back(*static_cast<const int64_t*>(inputs[k].data));
  }
  return numbers;
}

// The last kernel of column sums adds the partial sums of the others, column by column.
int64_t GridLayout::blocks(size_t kernel, size_t kernels) const {
  const bool finishes = kernel > 0 && kernel + 1 == kernels && count_column_sums(program_) > 0;
  return finishes ? divided(axes_.columns, neighbours) : blocks_;
}

bool GridLayout::is_empty() const {
  if (split_ == GridSplit::elements) return axes_.columns == 0;
  return count_column_sums(program_) > 0 ? axes_.columns == 0 : axes_.rows == 0;
}

}  // namespace fourfold::program
