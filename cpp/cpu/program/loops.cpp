#include "cpu/program/loops.h"

#include <algorithm>
#include <cstdlib>
#include <memory>

#include "cpu/memory.h"
#include "cpu/parallel.h"
#include "cpu/program/column_sums.h"
#include "cpu/program/run.h"

namespace fourfold::cpu {
namespace {

using program::Level;
using program::Nest;
using program::Program;

// A nest's arguments: these, then each tensor's address, each axis' size, and each axis' stride by tensor. nest/build.py has
// the same order.
enum Argument { column_count, block, row, partials, blocks, kept, chunk, chunks, first_tensor };

constexpr int64_t slack = 64;             // elements behind scratch memory that whole vectors may touch
constexpr int64_t parts_of_thread = 4;
constexpr int64_t fewest_of_chunk = 1024;

struct Free {
  void operator()(char* memory) const { std::free(memory); }
};

std::unique_ptr<char, Free> scratch(int64_t bytes) {
  return std::unique_ptr<char, Free>(bytes == 0 ? nullptr : static_cast<char*>(allocate(bytes, 1)));
}

// One call of a nest.
class NestCall {
 public:
  NestCall(const Nest& nest, const Loops& loops, std::vector<int64_t> arguments, int64_t grain, int64_t lanes)
      : nest_(nest), arguments_(std::move(arguments)), grain_(grain), lanes_(lanes), columns_(loops.columns()) {
    arguments_[column_count] = columns_;
    arguments_[block] = lanes;
  }

  int64_t& at(size_t argument) { return arguments_[argument]; }

  void run(size_t function, int64_t begin, int64_t end) const {
    if (nest_.functions[function] == nullptr) return;
    const auto memory = scratch(nest_.bytes_of_block * (lanes_ + slack) + nest_.bytes_of_column * (columns_ + slack));
    nest_.functions[function](begin, end, arguments_.data(), memory.get());
  }

  void share(size_t function, int64_t count, int64_t unit) const {
    if (nest_.functions[function] == nullptr) return;
    parallel(count, std::max<int64_t>(1, grain_ / std::max<int64_t>(1, unit)),
             [&](int64_t begin, int64_t end) { run(function, begin, end); });
  }

  void add_to(const Program& program, const Schedule& schedule, double* sums) {
    for (const ColumnSum& sum : schedule.column_sums) {
      at(first_tensor + program.inputs.size() + sum.output) = reinterpret_cast<int64_t>(sums);
      sums += columns_;
    }
  }

  void run_by_rows(int64_t rows) const { share(1, rows, columns_); }

  void run_by_columns(int64_t this_row) {
    const int64_t count = (columns_ + lanes_ - 1) / lanes_;
    const auto shared = scratch(nest_.bytes_of_column * (columns_ + slack));
    std::vector<int64_t> results(static_cast<size_t>(nest_.sums * (count + 1)));
    at(row) = this_row;
    at(blocks) = count;
    at(partials) = reinterpret_cast<int64_t>(results.data());
    at(kept) = reinterpret_cast<int64_t>(shared.get());
    for (size_t k = 1; k < nest_.functions.size(); k += 2) {
      share(k, count, lanes_);
      run(k + 1, 0, 1);
    }
  }

 private:
  const Nest& nest_;
  std::vector<int64_t> arguments_;
  int64_t grain_;
  int64_t lanes_;
  int64_t columns_;
};

}  // namespace

Loops::Loops(const Program& program, const std::vector<int64_t>& sizes, const program::Tensor* inputs,
             const program::Tensor* outputs) {
  std::vector<std::vector<int64_t>> strides;
  for (size_t k = 0; k < program.inputs.size(); ++k) {
    strides.push_back(program::axis_strides(program.inputs[k].dims, inputs[k].strides, sizes));
  }
  for (size_t k = 0; k < program.outputs.size(); ++k) {
    const auto& output = program.outputs[k];
    strides.push_back(output.level == Level::column ? std::vector<int64_t>(sizes.size())
                                                    : program::axis_strides(output.dims, outputs[k].strides, sizes));
  }
  const auto outer = static_cast<size_t>(program.outer);
  add_axes(sizes, 0, outer, strides);
  row_axes_ = sizes_.size();
  add_axes(sizes, outer, sizes.size(), strides);
  if (sizes_.size() == row_axes_) {
    sizes_.push_back(1);
    strides_.emplace_back(strides.size());
  }
  for (size_t a = 0; a < sizes_.size(); ++a) (a < row_axes_ ? rows_ : columns_) *= sizes_[a];
  if (program.has_rows) split_ = threads_share_rows(program, rows_, columns_) ? Split::columns : Split::rows;
  layout_ += static_cast<char>(split_);
  layout_ += std::to_string(row_axes_);
  for (size_t t = 0; t < strides.size(); ++t) {
    layout_ += t == 0 ? ':' : ',';
    for (const auto& stride : strides_) layout_ += stride[t] == 0 ? '0' : stride[t] == 1 ? '1' : 'n';
  }
}

// Axes of one element are left out, and two that every tensor steps through as through one are one.
void Loops::add_axes(const std::vector<int64_t>& sizes, size_t first, size_t last,
                     const std::vector<std::vector<int64_t>>& strides) {
  const size_t begin = sizes_.size();
  for (size_t a = first; a < last; ++a) {
    if (sizes[a] == 1) continue;
    const bool merges = sizes_.size() > begin && [&] {
      for (size_t t = 0; t < strides.size(); ++t) {
        if (strides_.back()[t] != strides[t][a] * sizes[a]) return false;
      }
      return true;
    }();
    if (merges) {
      sizes_.back() *= sizes[a];
    } else {
      sizes_.push_back(sizes[a]);
      strides_.emplace_back(strides.size());
    }
    for (size_t t = 0; t < strides.size(); ++t) strides_.back()[t] = strides[t][a];
  }
}

void Loops::run(const Nest& nest, const Program& program, const Schedule& schedule, const std::vector<int64_t>& sizes,
                const program::Tensor* inputs, const program::Tensor* outputs) const {
  std::vector<int64_t> arguments(first_tensor);
  const auto add = [&](const void* data) { arguments.push_back(reinterpret_cast<int64_t>(data)); };
  for (size_t k = 0; k < program.inputs.size(); ++k) add(inputs[k].data);
  for (size_t k = 0; k < program.outputs.size(); ++k) add(outputs[k].data);
  arguments.insert(arguments.end(), sizes_.begin(), sizes_.end());
  for (const auto& stride : strides_) arguments.insert(arguments.end(), stride.begin(), stride.end());
  NestCall call(nest, *this, std::move(arguments), grain(program, schedule), lanes(program, schedule));
  call.run(0, 0, 1);
  if (split_ == Split::elements) {
    const int64_t inner = sizes_.back(), outer = columns_ / inner;
    const int64_t parts = outer >= parts_of_thread * torch_threads() ? 1 : parts_of_thread * torch_threads();
    const int64_t length = outer == 1 ? 1 : std::max(fewest_of_chunk, (inner + parts - 1) / parts);
    call.at(chunk) = outer == 1 ? inner : length;
    call.at(chunks) = outer == 1 ? 1 : (inner + length - 1) / length;
    return call.share(1, outer == 1 ? inner : outer * call.at(chunks), outer == 1 ? 1 : std::min(length, inner));
  }
  ColumnSums sums(program, schedule, sizes, outputs);
  if (split_ == Split::columns) {
    for (int64_t r = 0; r < rows_; ++r) {
      if (!sums.empty() && r % sums.rows_of_chunk() == 0) call.add_to(program, schedule, sums.begin(r / sums.rows_of_chunk()));
      call.run_by_columns(r);
    }
  } else if (sums.empty()) {
    call.run_by_rows(rows_);
  } else {
    const int64_t each = sums.rows_of_chunk();
    parallel(sums.chunks(), std::max<int64_t>(1, grain(program, schedule) / columns_ / each), [&](int64_t begin, int64_t end) {
      for (int64_t k = begin; k < end; ++k) {
        NestCall part = call;
        part.add_to(program, schedule, sums.begin(k));
        part.run(1, k * each, std::min(rows_, (k + 1) * each));
      }
    });
  }
  sums.finish();
}

}  // namespace fourfold::cpu
