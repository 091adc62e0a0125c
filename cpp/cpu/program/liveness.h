// Liveness of a program's values: which are needed, the stage in which each is computed, and the remaining uses in a
// stage.
#pragma once

#include <vector>

#include "program/program.h"

namespace fourfold::cpu {

struct LiveValue {
  bool needed = false;
  int stage = 0;           // the first stage that can use it: for a reduction, the one after its operand's
  int materialized = -1;   // the slot of a number, a row's value, or an element's value that several stages read
  int register_slot = -1;  // in the stage that is being scheduled
  int expanded = -1;       // the slot of a row's value broadcast to its columns
  int emitted = -1;        // the stage in which it has been computed
  int uses = 0;            // remaining in the stage
};

class Liveness {
 public:
  explicit Liveness(const program::Program& program);

  size_t size() const { return values_.size(); }
  LiveValue& operator[](size_t v) { return values_[v]; }
  const LiveValue& operator[](size_t v) const { return values_[v]; }
  int stages() const { return stages_; }
  // The cost of an element, in additions.
  int cost() const { return cost_; }

  const program::Value& value(int v) const { return program_.values[v]; }
  int operands(int v) const {
    return value(v).source == program::Source::operation ? program::describe(value(v).op).operands : 0;
  }
  const program::Input& input_of(int v) const { return program_.inputs[value(v).operand[0]]; }
  bool is_sum(int v) const { return value(v).source == program::Source::operation && program::is_reduction(value(v).op); }
  bool has_output(int v) const;

  // Whether an earlier stage materialized it, so that its slot holds it when this stage begins.
  bool is_here(int v, int stage) const {
    return value(v).level == program::Level::element && values_[v].materialized >= 0 && values_[v].stage < stage;
  }
  // Whether a later stage should load it instead of recomputing it.
  bool is_expensive_again(int v, int stage) const;
  // Counts the uses of each value in this stage.
  void count_uses(int stage);
  // Frees all registers.
  void leave_stage();

 private:
  void find_needed();
  void find_stages();
  int cost_again(int v, int stage) const;
  void count_use(int v, int stage);
  void visit(int v, int stage);

  const program::Program& program_;
  std::vector<LiveValue> values_;
  int stages_ = 1;
  int cost_ = 0;
};

}  // namespace fourfold::cpu
