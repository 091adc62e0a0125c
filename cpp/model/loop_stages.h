// The steps of a loop as stages that the library runs one after another (fourfold_stages_run): programs, products with matrices
// that stay the same, packed once, copies, and torch's other operators. Every value has its memory before the first of them.
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

namespace fourfold::model {

struct OperatorStep;
struct ProgramStep;

// Where a value lies at the first of the steps, and how far a step's lies behind that.
struct Place {
  at::Tensor tensor;
  int64_t stride = 0;  // in elements, from one step to the next
  int64_t period = 0;  // the number of steps after which their memory is used again, or 0
};

// The values that a product multiplies, the second a matrix, and the one that it begins with.
struct Factors {
  size_t a;
  size_t b;
  size_t start;
  bool has_start;
  bool is_vector;  // a
};

class LoopStages {
 public:
  // recorded: all values of a step before `begin`, and where each of the body's steps has its first result.
  LoopStages(const LoopStep& loop, const LoopRun& run, Values recorded, const std::vector<size_t>& firsts)
      : loop_(loop), run_(run), recorded_(std::move(recorded)), firsts_(firsts) {}

  // Runs the steps from `begin` on, which is at least 1; `results` are those of the step before, and become the last one's.
  // False: there is a step that stages can't be made of, and nothing was run.
  bool run(int64_t begin, Values& results);

 private:
  // An operator of torch that is a stage: it is called with tensors in the values' memory.
  struct Call {
    const OperatorStep* step;
    size_t first;                // its first result
    std::vector<size_t> inputs;  // values that differ from step to step
    LoopStages* stages;
  };

  bool find_roots();
  bool has_root_of(const OperatorStep& step, size_t first, size_t end);
  void find_products_of_input();
  void find_added_products();
  void compute_small_products();
  // Nothing where the body's step is none.
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
  // Nothing where it has none.
  bool find_place(size_t value, Place& found) const;
  bool is_given(size_t value) const { return value < loop_.feeds.size() + run_.sequences.size() + run_.invariants.size(); }
  // Whether every step reads the same.
  bool is_invariant(size_t value) const;
  // Whether it is a step's own, and known before the first of them.
  bool is_of_sequence(size_t value) const;
  static void call(void* context, int64_t step);

  const LoopStep& loop_;
  const LoopRun& run_;
  const Values recorded_;
  const std::vector<size_t>& firsts_;
  std::vector<size_t> roots_;   // of each value the one whose memory it is a view of
  struct OfInput {
    Factors factors;
    int64_t together;  // for how many steps it is computed at once
  };
  std::map<size_t, OfInput> of_input_;  // products of a step's own values with a matrix that stays the same
  std::map<size_t, Factors> added_;     // products that begin with one of these, which has no stage of its own then
  std::map<size_t, at::Tensor> wholes_;  // products of all steps
  std::set<size_t> without_stage_;
  std::vector<Place> places_;   // of roots
  std::vector<Place> states_;   // of each new state, where the next step reads it
  std::vector<std::pair<size_t, Place>> copies_;  // results that are more than one, or views
  std::vector<fourfold_stage> stages_;
  std::deque<std::vector<fourfold_moving_tensor>> tensors_;  // of the stages
  std::vector<at::Tensor> held_;                             // what they point to
  std::deque<int64_t> numbers_;
  std::deque<Call> calls_;
};

}  // namespace fourfold::model
