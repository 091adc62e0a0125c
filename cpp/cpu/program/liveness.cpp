#include "cpu/program/liveness.h"

#include <algorithm>

namespace fourfold::cpu {

using program::Level;
using program::Source;

namespace {

constexpr int cheap = 4;  // the most that is recomputed in another stage, in additions
constexpr int load_cost = 1;

}  // namespace

Liveness::Liveness(const program::Program& program) : program_(program), values_(program.values.size()) {
  find_needed();
  find_stages();
}

void Liveness::find_needed() {
  for (const auto& output : program_.outputs) values_[output.value].needed = true;
  for (int v = static_cast<int>(program_.values.size()) - 1; v >= 0; --v) {
    if (!values_[v].needed) continue;
    for (int k = 0; k < operands(v); ++k) values_[value(v).operand[k]].needed = true;
  }
}

void Liveness::find_stages() {
  for (size_t v = 0; v < values_.size(); ++v) {
    LiveValue& live = values_[v];
    for (int k = 0; k < operands(v); ++k) live.stage = std::max(live.stage, values_[value(v).operand[k]].stage);
    if (is_sum(v)) ++live.stage;
    if (!live.needed) continue;
    stages_ = std::max(stages_, live.stage + 1);
    if (value(v).source == Source::operation) cost_ += program::describe(value(v).op).cost;
  }
  cost_ += static_cast<int>(program_.inputs.size() + program_.outputs.size()) * load_cost;
}

bool Liveness::has_output(int v) const {
  return std::any_of(program_.outputs.begin(), program_.outputs.end(),
                     [v](const auto& output) { return output.value == v && output.level == Level::element; });
}

bool Liveness::is_expensive_again(int v, int stage) const { return cost_again(v, stage) > cheap; }

int Liveness::cost_again(int v, int stage) const {
  if (value(v).level != Level::element || values_[v].stage == stage || values_[v].materialized >= 0) return 0;
  if (value(v).source == Source::input) return load_cost;
  int cost = program::describe(value(v).op).cost;
  for (int k = 0; k < operands(v) && cost <= cheap; ++k) cost += cost_again(value(v).operand[k], stage);
  return cost;
}

void Liveness::count_uses(int stage) {
  for (LiveValue& live : values_) live.uses = 0, live.emitted = -1;
  for (size_t v = 0; v < values_.size(); ++v) {
    if (!values_[v].needed) continue;
    const bool sums = is_sum(v) && values_[v].stage == stage + 1;
    if (sums) count_use(value(v).operand[0], stage);
    if (values_[v].stage != stage) continue;
    if (value(v).level == Level::element && values_[v].materialized >= 0) visit(static_cast<int>(v), stage);
    for (const auto& output : program_.outputs) {
      const bool is_used = output.level == Level::element || output.level == Level::column;
      if (output.value == static_cast<int>(v) && is_used) count_use(static_cast<int>(v), stage);
    }
  }
  for (LiveValue& live : values_) live.emitted = -1;
}

void Liveness::count_use(int v, int stage) {
  ++values_[v].uses;
  visit(v, stage);
}

void Liveness::visit(int v, int stage) {
  LiveValue& live = values_[v];
  if (live.emitted == stage || is_here(v, stage)) return;
  live.emitted = stage;
  if (value(v).level != Level::element) return;
  for (int k = 0; k < operands(v); ++k) count_use(value(v).operand[k], stage);
}

void Liveness::leave_stage() {
  for (LiveValue& live : values_) live.register_slot = -1;
}

}  // namespace fourfold::cpu
