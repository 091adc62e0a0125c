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
#include <string>
#include <utility>
#include <vector>

#include "loop_step.h"

namespace fourfold::graph {

struct OperatorStep;
struct ProgramStep;

// A value's memory in the first step, and how that moves from step to step.
struct MovingTensor {
  at::Tensor tensor;
  int64_t stride = 0;  // in elements, from one step to the next
  int64_t period = 0;  // the number of steps after which memory is reused, or 0
};

// A value's memory in each step.
struct MovingMemory {
  char* data = nullptr;
  int64_t bytes = 0;  // from one step to the next
  int64_t period = 0;

  char* at(int64_t step) const { return data + (period != 0 ? step % period : step) * bytes; }
};

// An operator on rows of float32 whose call takes torch longer than its work: the rows of a table at given places, or
// the largest element of each row.
struct LoopLookup {
  bool is_embedding;
  bool wraps;       // places count from the end if they are negative
  int64_t rows;     // that are found, or searched
  int64_t columns;
  int64_t table_rows, table_step;
  MovingMemory from, places, values;  // values: of the largest elements, may have no memory
  void* otherwise = nullptr;          // torch's call, for places outside of the table
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
  LoopStages(const LoopStep& loop, const LoopCall& call, Values recorded, const std::vector<size_t>& firsts)
      : loop_(loop), call_(call), recorded_(std::move(recorded)), firsts_(firsts) {}

  // Makes the stages of the steps from `begin` on, at least 1. results: those of the step before.
  Obstacle prepare(int64_t begin, const Values& results);
  // After prepare(): what only the backend knows to be impossible.
  Obstacle check() const { return run_steps(0); }
  // After prepare(). `results` become those of the last step.
  Obstacle run(Values& results);
  // The stages in words: LoopPlan::stage_texts.
  std::vector<std::pair<int64_t, std::string>> texts() const;

 private:
  // A stage that calls an operator of torch, with tensors in the values' memory.
  struct OperatorCall {
    const OperatorStep* step;
    size_t first;                // the index of its first result
    std::vector<size_t> inputs;  // the values that it reads
    LoopStages* stages;
    Values values;               // of a step, before its results
  };

  Obstacle run_steps(int64_t steps) const;
  Obstacle find_roots();
  Obstacle find_roots_of(const OperatorStep& step, size_t first, size_t end);
  void find_products_of_input();
  void find_added_products();
  // Empty if the body's step isn't a product.
  std::optional<Factors> factors_at(size_t step) const;
  size_t reads_of(size_t value) const;
  Obstacle allocate(const Values& results);
  void allocate_states(const Values& results);
  // New memory, or that of a given tensor.
  MovingTensor memory_of(size_t value) const;
  // False if the value can't be computed there: it is an input, a view, has memory already, or has other strides.
  bool compute_in(size_t value, const MovingTensor& memory);
  Obstacle add_stages();
  Obstacle add(const ProgramStep& step, size_t first);
  Obstacle add(const OperatorStep& step, size_t first, size_t end);
  bool add_product(const OperatorStep& step, size_t first);
  bool add_factors(const Factors& factors, std::vector<fourfold_moving_tensor>& inputs);
  void add_stage(int32_t kind, std::vector<fourfold_moving_tensor> inputs, const std::vector<MovingTensor>& outputs);
  fourfold_moving_tensor describe(MovingTensor moving);
  // False if the value has no memory of its own type.
  bool find(size_t value, MovingTensor& found) const;
  bool is_given(size_t value) const { return value < loop_.feeds.size() + call_.series.size() + call_.invariants.size(); }
  // Whether every step reads the same value.
  bool is_invariant(size_t value) const;
  // Whether it is an element of a series, or a view of one: different in each step, and known before the loop.
  bool is_of_sequence(size_t value) const;
  static void run_operator(void* context, int64_t step);
  // Of embedding, of the same as an index, and of max and argmax along rows.
  std::optional<LoopLookup> lookup_of(const OperatorStep& step, size_t first) const;
  std::optional<LoopLookup> embedding_of(const OperatorStep& step, size_t first) const;
  std::optional<LoopLookup> largest_of(const OperatorStep& step, size_t first) const;
  static void run_lookup(void* context, int64_t step);
  std::string text_of(size_t stage, const OperatorStep& step) const;

  const LoopStep& loop_;
  const LoopCall& call_;
  const Values recorded_;
  const std::vector<size_t>& firsts_;
  std::vector<size_t> roots_;   // for each value, the value that it is a view of, or itself
  struct OfInput {
    Factors factors;
    int64_t together;  // the number of steps computed at once
  };
  std::map<size_t, OfInput> of_input_;  // products of the input with an invariant matrix
  std::map<size_t, Factors> added_;     // by product: the product of the input that it adds, fused into its stage
  std::set<size_t> without_stage_;
  int64_t begin_ = 0;                    // the number of steps before the stages'
  std::vector<MovingTensor> memory_;     // of roots
  std::vector<MovingTensor> states_;     // for each new state, where the next step reads it
  std::vector<std::pair<size_t, MovingTensor>> copies_;  // results that can't be computed in place, and their destinations
  std::vector<fourfold_stage> stages_;
  std::vector<int64_t> steps_of_;  // for each stage, the body's step, or -1 for a result's copy
  std::deque<std::vector<fourfold_moving_tensor>> tensors_;  // of the stages
  std::vector<at::Tensor> held_;                             // the tensors that the stages point to
  std::deque<int64_t> numbers_;
  std::deque<OperatorCall> calls_;
  std::deque<LoopLookup> lookups_;
};

}  // namespace fourfold::graph
