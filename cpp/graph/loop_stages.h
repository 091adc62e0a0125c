// Runs the steps of a loop as stages (fourfold_stages_run): programs, products with loop-invariant matrices, which are
// packed once, copies, and torch's other operators. All values are allocated before the first step.
#pragma once

#include <ATen/core/Tensor.h>
#include <fourfold/program.h>

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "loop_step.h"

namespace fourfold::graph {

struct OperatorStep;
struct ProgramStep;

// Where a value is stored in the first step, and how that moves from step to step.
struct Place {
  at::Tensor tensor;
  int64_t stride = 0;  // in elements, from one step to the next
  int64_t period = 0;  // the number of steps after which memory is reused, or 0
};

// The operands of a product: start + a b, where b is a matrix.
struct Factors {
  size_t a;
  size_t b;
  size_t start;
  bool has_start;
  bool is_vector;  // a is a vector
};

class LoopStages {
 public:
  // recorded: all values of a step before `begin`. firsts: for each of the body's steps, the index of its first result.
  LoopStages(const LoopStep& loop, const LoopRun& run, Values recorded, const std::vector<size_t>& firsts)
      : loop_(loop), run_(run), recorded_(std::move(recorded)), firsts_(firsts) {}

  // Runs the steps from `begin` on, at least 1. `results` are those of the previous step, and become those of the last
  // one. False if a step isn't supported as a stage; nothing was run then.
  bool run(int64_t begin, Values& results);

 private:
  // A stage that calls an operator of torch, with tensors in the values' memory.
  struct Call {
    const OperatorStep* step;
    size_t first;                // the index of its first result
    std::vector<size_t> inputs;  // the values that it reads
    LoopStages* stages;
  };

  bool find_roots();
  bool has_root_of(const OperatorStep& step, size_t first, size_t end);
  void find_products_of_input();
  void find_added_products();
  void compute_small_products();
  // Empty if the body's step isn't a product.
  std::optional<Factors> factors_at(size_t step) const;
  size_t reads_of(size_t value) const;
  bool give_homes(int64_t begin, const Values& results);
  bool give_home(size_t value, const Place& place);
  bool add_stages();
  bool add(const ProgramStep& step, size_t first);
  bool add(const OperatorStep& step, size_t first, size_t end);
  bool add_product(const OperatorStep& step, size_t first);
  bool add_factors(const Factors& factors, std::vector<fourfold_moving_tensor>& inputs);
  void add_stage(int32_t kind, std::vector<fourfold_moving_tensor> inputs, const std::vector<Place>& outputs);
  fourfold_moving_tensor moving(Place place);
  // False if the value has no place.
  bool find_place(size_t value, Place& found) const;
  bool is_given(size_t value) const { return value < loop_.feeds.size() + run_.sequences.size() + run_.invariants.size(); }
  // Whether every step reads the same value.
  bool is_invariant(size_t value) const;
  // Whether it is an element of a series, or a view of one: different in each step, and known before the loop.
  bool is_of_sequence(size_t value) const;
  static void call(void* context, int64_t step);

  const LoopStep& loop_;
  const LoopRun& run_;
  const Values recorded_;
  const std::vector<size_t>& firsts_;
  std::vector<size_t> roots_;   // for each value, the value that it is a view of, or itself
  struct OfInput {
    Factors factors;
    int64_t together;  // the number of steps computed at once
  };
  std::map<size_t, OfInput> of_input_;  // products of the input with an invariant matrix
  std::map<size_t, Factors> added_;     // by product: the product of the input that it adds, fused into its stage
  std::map<size_t, at::Tensor> wholes_;  // products computed for all steps before the loop
  std::set<size_t> without_stage_;
  std::vector<Place> places_;   // of roots
  std::vector<Place> states_;   // for each new state, where the next step reads it
  std::vector<std::pair<size_t, Place>> copies_;  // results that can't be computed in place, and their destinations
  std::vector<fourfold_stage> stages_;
  std::deque<std::vector<fourfold_moving_tensor>> tensors_;  // of the stages
  std::vector<at::Tensor> held_;                             // the tensors that the stages point to
  std::deque<int64_t> numbers_;
  std::deque<Call> calls_;
};

}  // namespace fourfold::graph
