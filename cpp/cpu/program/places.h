// Of a program's values, which are needed, in which stage each is known, and how often a stage reads it.
#pragma once

#include <vector>

#include "program/program.h"

namespace fourfold::cpu {

struct Place {
  bool needed = false;
  int stage = 0;           // in which it is known: that after a reduction's own
  int kept = -1;           // its slot, of a number, a row's value, or an element's that stages share
  int register_slot = -1;  // in the stage that is being scheduled
  int expanded = -1;       // a row's value for each of its columns
  int emitted = -1;        // the stage in which it has been computed
  int uses = 0;            // that are still to come in the stage
};

class Places {
 public:
  explicit Places(const program::Program& program);

  size_t size() const { return places_.size(); }
  Place& operator[](size_t v) { return places_[v]; }
  const Place& operator[](size_t v) const { return places_[v]; }
  int stages() const { return stages_; }
  // Of an element, in additions.
  int cost() const { return cost_; }

  const program::Value& value(int v) const { return program_.values[v]; }
  int operands(int v) const {
    return value(v).source == program::Source::operation ? program::describe(value(v).op).operands : 0;
  }
  const program::Input& input_of(int v) const { return program_.inputs[value(v).operand[0]]; }
  bool is_sum(int v) const { return value(v).source == program::Source::operation && program::is_reduction(value(v).op); }
  bool has_output(int v) const;

  // Whether its slot holds it before a stage begins: what an earlier one has kept.
  bool is_here(int v, int stage) const {
    return value(v).level == program::Level::element && places_[v].kept >= 0 && places_[v].stage < stage;
  }
  // Whether it had better be kept than be computed once more in a stage after its own, from what is known there.
  bool is_dear_again(int v, int stage) const;
  // How often each element's value is read in this stage, by what is going to be emitted in it.
  void count_uses(int stage);
  // Emitted in none, in no register.
  void leave_stage();

 private:
  void find_needed();
  void find_stages();
  int cost_again(int v, int stage) const;
  void count_use(int v, int stage);
  void visit(int v, int stage);

  const program::Program& program_;
  std::vector<Place> places_;
  int stages_ = 1;
  int cost_ = 0;
};

}  // namespace fourfold::cpu
