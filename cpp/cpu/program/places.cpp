#include "cpu/program/places.h"

#include <algorithm>

namespace fourfold::cpu {

using program::Level;
using program::Source;

namespace {

constexpr int cheap = 4;  // what may be computed again in another stage, in additions
constexpr int load_cost = 1;

}  // namespace

Places::Places(const program::Program& program) : program_(program), places_(program.values.size()) {
  find_needed();
  find_stages();
}

void Places::find_needed() {
  for (const auto& output : program_.outputs) places_[output.value].needed = true;
  for (int v = static_cast<int>(program_.values.size()) - 1; v >= 0; --v) {
    if (!places_[v].needed) continue;
    for (int k = 0; k < operands(v); ++k) places_[value(v).operand[k]].needed = true;
  }
}

void Places::find_stages() {
  for (size_t v = 0; v < places_.size(); ++v) {
    Place& place = places_[v];
    for (int k = 0; k < operands(v); ++k) place.stage = std::max(place.stage, places_[value(v).operand[k]].stage);
    if (is_sum(v)) ++place.stage;
    if (!place.needed) continue;
    stages_ = std::max(stages_, place.stage + 1);
    if (value(v).source == Source::operation) cost_ += program::describe(value(v).op).cost;
  }
  cost_ += static_cast<int>(program_.inputs.size() + program_.outputs.size()) * load_cost;
}

bool Places::has_output(int v) const {
  return std::any_of(program_.outputs.begin(), program_.outputs.end(),
                     [v](const auto& output) { return output.value == v && output.level == Level::element; });
}

bool Places::is_dear_again(int v, int stage) const { return cost_again(v, stage) > cheap; }

int Places::cost_again(int v, int stage) const {
  if (value(v).level != Level::element || places_[v].stage == stage || places_[v].kept >= 0) return 0;
  if (value(v).source == Source::input) return load_cost;
  int cost = program::describe(value(v).op).cost;
  for (int k = 0; k < operands(v) && cost <= cheap; ++k) cost += cost_again(value(v).operand[k], stage);
  return cost;
}

void Places::count_uses(int stage) {
  for (Place& place : places_) place.uses = 0, place.emitted = -1;
  for (size_t v = 0; v < places_.size(); ++v) {
    if (!places_[v].needed) continue;
    const bool sums = is_sum(v) && places_[v].stage == stage + 1;
    if (sums) count_use(value(v).operand[0], stage);
    if (places_[v].stage != stage) continue;
    if (value(v).level == Level::element && places_[v].kept >= 0) visit(static_cast<int>(v), stage);
    for (const auto& output : program_.outputs) {
      const bool is_used = output.level == Level::element || output.level == Level::column;
      if (output.value == static_cast<int>(v) && is_used) count_use(static_cast<int>(v), stage);
    }
  }
  for (Place& place : places_) place.emitted = -1;
}

void Places::count_use(int v, int stage) {
  ++places_[v].uses;
  visit(v, stage);
}

void Places::visit(int v, int stage) {
  Place& place = places_[v];
  if (place.emitted == stage || is_here(v, stage)) return;
  place.emitted = stage;
  if (value(v).level != Level::element) return;
  for (int k = 0; k < operands(v); ++k) count_use(value(v).operand[k], stage);
}

void Places::leave_stage() {
  for (Place& place : places_) place.register_slot = -1;
}

}  // namespace fourfold::cpu
