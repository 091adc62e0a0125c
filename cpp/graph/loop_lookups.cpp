// Lookups among a loop's stages: what greedy decoders do in each step, on a few rows.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

#include "graph.h"
#include "loop_stages.h"

namespace fourfold::graph {
namespace {

MovingMemory memory_of_moving(const MovingTensor& moving) {
  const auto size = static_cast<int64_t>(moving.tensor.element_size());
  return {static_cast<char*>(const_cast<void*>(moving.tensor.const_data_ptr())), moving.stride * size, moving.period};
}

// A number that the step has as it was written.
std::optional<int64_t> integer_of(const OperatorArgument& argument) {
  return argument.index < 0 && argument.constant.isInt() ? std::optional(argument.constant.toInt()) : std::nullopt;
}

bool has_type(const MovingTensor& moving, at::ScalarType dtype) {
  return moving.tensor.scalar_type() == dtype && moving.tensor.is_contiguous();
}

// False if a place is outside of the table.
bool find_rows(const LoopLookup& lookup, int64_t step) {
  const auto* const places = reinterpret_cast<const int64_t*>(lookup.places.at(step));
  const char* const table = lookup.from.at(step);
  const size_t bytes = static_cast<size_t>(lookup.columns) * sizeof(float);
  for (int64_t k = 0; k < lookup.rows; ++k) {
    const int64_t place = lookup.wraps && places[k] < 0 ? places[k] + lookup.table_rows : places[k];
    if (place < 0 || place >= lookup.table_rows) return false;
    std::memcpy(lookup.values.at(step) + static_cast<size_t>(k) * bytes, table + place * lookup.table_step, bytes);
  }
  return true;
}

constexpr int64_t lanes = 16, most_compared = 1 << 11;  // elements: of more, torch's kernel is as fast

// The largest element, or NaN if there is one.
float largest_of_row(const float* row, int64_t columns) {
  float most[lanes], wrong[lanes] = {};  // wrong: NaN where an element is, else 0
  std::fill_n(most, lanes, row[0]);
  int64_t c = 0;
  for (; c + lanes <= columns; c += lanes) {
    for (int64_t k = 0; k < lanes; ++k) {
      most[k] = row[c + k] > most[k] ? row[c + k] : most[k];
      wrong[k] += row[c + k] == row[c + k] ? 0.0f : row[c + k];
    }
  }
  for (; c < columns; ++c) {
    most[0] = row[c] > most[0] ? row[c] : most[0];
    wrong[0] += row[c] == row[c] ? 0.0f : row[c];
  }
  for (int64_t k = 0; k < lanes; ++k) {
    if (std::isnan(wrong[k])) return wrong[k];
  }
  return *std::max_element(most, most + lanes);
}

// The first of the largest elements, or the first NaN, as torch's.
void find_largest(const LoopLookup& lookup, int64_t step) {
  const auto* row = reinterpret_cast<const float*>(lookup.from.at(step));
  auto* const places = reinterpret_cast<int64_t*>(lookup.places.at(step));
  auto* const values = lookup.values.data == nullptr ? nullptr : reinterpret_cast<float*>(lookup.values.at(step));
  for (int64_t k = 0; k < lookup.rows; ++k, row += lookup.columns) {
    const float largest = largest_of_row(row, lookup.columns);
    const auto is_it = [largest](float each) { return std::isnan(largest) ? std::isnan(each) : each == largest; };
    places[k] = std::find_if(row, row + lookup.columns, is_it) - row;
    if (values != nullptr) values[k] = row[places[k]];
  }
}

}  // namespace

std::optional<LoopLookup> LoopStages::lookup_of(const OperatorStep& step, size_t first) const {
  const std::string name = name_of(step);
  if (name == "embedding" || name == "index") return embedding_of(step, first);
  return name == "max" || name == "argmax" ? largest_of(step, first) : std::nullopt;
}

std::optional<LoopLookup> LoopStages::embedding_of(const OperatorStep& step, size_t first) const {
  const bool is_index = name_of(step) == "index";
  const auto& given = step.arguments;
  if (is_index && given[1].parts.size() != 1) return std::nullopt;
  const OperatorArgument& of_places = is_index ? given[1].parts[0] : given[1];
  MovingTensor table, places;
  if (given[0].index < 0 || of_places.index < 0) return std::nullopt;
  if (!find(static_cast<size_t>(given[0].index), table) || !find(static_cast<size_t>(of_places.index), places)) return std::nullopt;
  const MovingTensor& result = memory_[first];
  if (table.tensor.dim() != 2 || table.tensor.scalar_type() != at::kFloat || table.tensor.stride(1) != 1 || table.tensor.size(1) < 1) return std::nullopt;
  if (!has_type(places, at::kLong) || !has_type(result, at::kFloat)) return std::nullopt;
  const auto step_of_table = table.tensor.stride(0) * static_cast<int64_t>(sizeof(float));
  return LoopLookup{true, is_index, places.tensor.numel(), table.tensor.size(1), table.tensor.size(0), step_of_table,
                    memory_of_moving(table), memory_of_moving(places), memory_of_moving(result)};
}

std::optional<LoopLookup> LoopStages::largest_of(const OperatorStep& step, size_t first) const {
  const bool has_values = name_of(step) == "max";
  if (has_values && step.handle.operator_name().overload_name != "dim") return std::nullopt;
  MovingTensor from;
  if (step.arguments[0].index < 0 || !find(static_cast<size_t>(step.arguments[0].index), from)) return std::nullopt;
  const std::optional<int64_t> dim = integer_of(step.arguments[1]);
  const MovingTensor& places = memory_[has_values ? first + 1 : first];
  if (!dim.has_value() || from.tensor.dim() < 1 || (*dim != -1 && *dim != from.tensor.dim() - 1)) return std::nullopt;
  if (!has_type(from, at::kFloat) || !has_type(places, at::kLong) || from.tensor.numel() == 0) return std::nullopt;
  if (from.tensor.numel() > most_compared) return std::nullopt;
  if (has_values && !has_type(memory_[first], at::kFloat)) return std::nullopt;
  const int64_t columns = from.tensor.size(-1);
  return LoopLookup{false, false, from.tensor.numel() / columns, columns, 0, 0, memory_of_moving(from), memory_of_moving(places),
                    has_values ? memory_of_moving(memory_[first]) : MovingMemory{}};
}

void LoopStages::run_lookup(void* context, int64_t step) {
  const LoopLookup& lookup = *static_cast<const LoopLookup*>(context);
  if (!lookup.is_embedding) return find_largest(lookup, step);
  if (!find_rows(lookup, step)) run_operator(lookup.otherwise, step);  // which raises torch's error
}

}  // namespace fourfold::graph
