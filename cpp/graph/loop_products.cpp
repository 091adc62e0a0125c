// The products among a loop's stages: products with loop-invariant matrices, among them products of the input, which
// don't depend on the state.
#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "graph.h"
#include "loop_stages.h"

namespace fourfold::graph {
namespace {

bool is_one(const OperatorArgument& argument) {
  return argument.index < 0 && equals_one(argument.constant);
}

bool is_of_graph(const OperatorArgument& argument) { return argument.index >= 0; }

std::optional<Factors> factors_of(const OperatorStep& step) {
  const std::string& name = step.handle.operator_name().name;
  const auto& given = step.arguments;
  const bool has_start = name == "aten::addmm" || name == "aten::baddbmm" || name == "aten::addmv";
  const bool is_vector = name == "aten::mv" || name == "aten::addmv";
  if (!has_start && name != "aten::mm" && name != "aten::bmm" && name != "aten::mv") return std::nullopt;
  const size_t shift = has_start ? 1 : 0;
  if (given.size() != (has_start ? 5 : 2) || (has_start && (!is_one(given[3]) || !is_one(given[4])))) return std::nullopt;
  if (!std::all_of(given.begin(), given.begin() + static_cast<int64_t>(2 + shift), is_of_graph)) return std::nullopt;
  size_t a = static_cast<size_t>(given[shift].index), b = static_cast<size_t>(given[shift + 1].index);
  if (is_vector) std::swap(a, b);
  return Factors{a, b, has_start ? static_cast<size_t>(given[0].index) : 0, has_start, is_vector};
}

}  // namespace

bool LoopStages::is_of_sequence(size_t value) const {
  const size_t root = roots_[value];
  return root >= loop_.feeds.size() && root < loop_.feeds.size() + call_.series.size();
}

// Finds products of the input, which are computed for several steps at once: products of few rows are slow, and read
// the matrix in every step. The number of steps is such that their results stay in a core's cache; it is larger for
// matrices that don't.
void LoopStages::find_products_of_input() {
  constexpr int64_t near = 192 * 1024, far = 1024 * 1024;  // bytes of results
  constexpr int64_t large = 512 * 1024;                    // bytes of a matrix
  for (size_t k = 0; k < loop_.body->steps.size(); ++k) {
    const std::optional<Factors> found = factors_at(k);
    if (!found.has_value() || found->is_vector || !is_of_sequence(found->a) || !is_invariant(found->b)) continue;
    const auto& results = loop_.body->outputs;
    if (std::count(results.begin(), results.end(), static_cast<int64_t>(firsts_[k])) > 0) continue;
    const at::Tensor &out = recorded_[firsts_[k]].toTensor(), &b = recorded_[found->b].toTensor();
    if (out.dim() != 2 || out.nbytes() == 0) continue;
    if (found->has_start) {
      const at::Tensor& start = recorded_[found->start].toTensor();
      if (!is_invariant(found->start) || start.dim() != 1 || start.size(0) != out.size(1)) continue;
    }
    const int64_t room = static_cast<int64_t>(b.nbytes()) > large ? far : near;
    const int64_t count = std::min(room / static_cast<int64_t>(out.nbytes()), call_.steps);
    of_input_[firsts_[k]] = {*found, std::max<int64_t>(count, 1)};
  }
}

// If a step has enough rows to fill a tile, fuses a product with the product of the input that it adds: a b + a2 b2 in
// one pass, with the sums in registers.
void LoopStages::find_added_products() {
  constexpr int64_t fewest_rows = 8;
  constexpr size_t largest = 256 * 1024;  // bytes of the input's matrix, which every step then reads
  for (size_t k = 0; k < loop_.body->steps.size(); ++k) {
    const std::optional<Factors> found = factors_at(k);
    if (!found.has_value() || !found->has_start || found->is_vector || !is_invariant(found->b)) continue;
    const auto input = of_input_.find(found->start);
    const at::Tensor& out = recorded_[firsts_[k]].toTensor();
    if (input == of_input_.end() || out.dim() != 2 || out.size(0) < fewest_rows || reads_of(found->start) != 1) continue;
    const at::Tensor& b = recorded_[input->second.factors.b].toTensor();
    if (b.nbytes() > largest || recorded_[found->start].toTensor().sizes() != out.sizes()) continue;
    added_[firsts_[k]] = input->second.factors;
    without_stage_.insert(input->first);
    of_input_.erase(input);
  }
}

std::optional<Factors> LoopStages::factors_at(size_t step) const {
  const auto* const operation = std::get_if<OperatorStep>(&loop_.body->steps[step].call);
  return operation == nullptr ? std::nullopt : factors_of(*operation);
}

size_t LoopStages::reads_of(size_t value) const {
  size_t count = static_cast<size_t>(
      std::count(loop_.body->outputs.begin(), loop_.body->outputs.end(), static_cast<int64_t>(value)));
  for (const auto& step : loop_.body->steps) {
    std::vector<size_t> read;
    if (const auto* program = std::get_if<ProgramStep>(&step.call)) read = program->inputs;
    if (const auto* item = std::get_if<ItemStep>(&step.call)) read = {item->list};
    if (const auto* operation = std::get_if<OperatorStep>(&step.call)) read = read_by(*operation);
    count += static_cast<size_t>(std::count(read.begin(), read.end(), value));
  }
  return count;
}

// Adds a stage for a product with a loop-invariant matrix: mm, bmm, addmm, baddbmm, mv or addmv.
bool LoopStages::add_product(const OperatorStep& step, size_t first) {
  const std::optional<Factors> found = factors_of(step);
  if (!found.has_value()) return false;
  const auto added = added_.find(first);
  const Factors& beginning = added == added_.end() ? *found : added->second;  // the product that adds `start`
  MovingTensor out = memory_[first];
  if (found->is_vector) out.tensor = out.tensor.unsqueeze(0);  // one row
  if (out.tensor.size(-1) > 1 && out.tensor.stride(-1) != 1) return false;
  std::vector<fourfold_moving_tensor> inputs;
  if (!add_factors(*found, inputs) || (added != added_.end() && !add_factors(beginning, inputs))) return false;
  if (beginning.has_start) {
    MovingTensor start;
    if (!find(beginning.start, start)) return false;
    const bool is_row = start.tensor.dim() == 1 && start.tensor.size(0) == out.tensor.size(-1);  // shared by all rows
    if (!is_row && start.tensor.sizes() != out.tensor.sizes()) start.tensor = start.tensor.expand(out.tensor.sizes());
    if (start.tensor.size(-1) > 1 && start.tensor.stride(-1) != 1) return false;
    inputs.push_back(describe(start));
  }
  add_stage(fourfold_stage_product, std::move(inputs), {out});
  if (const auto of_input = of_input_.find(first); of_input != of_input_.end()) {
    stages_.back().together = of_input->second.together;
  }
  return true;
}

bool LoopStages::add_factors(const Factors& factors, std::vector<fourfold_moving_tensor>& inputs) {
  MovingTensor a, b;
  if (!is_invariant(factors.b) || !find(factors.a, a) || !find(factors.b, b)) return false;
  if (factors.is_vector) {
    a.tensor = a.tensor.unsqueeze(0);
    b.tensor = b.tensor.t();
  }
  if (b.tensor.scalar_type() != at::kFloat && b.tensor.scalar_type() != at::kDouble) return false;
  if (b.tensor.stride(-1) != 1 && b.tensor.stride(-2) != 1) b.tensor = b.tensor.contiguous();
  inputs.push_back(describe(a));
  inputs.push_back(describe(b));
  return true;
}

}  // namespace fourfold::graph
