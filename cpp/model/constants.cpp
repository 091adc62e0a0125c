#include "constants.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <set>
#include <string>

namespace fourfold::model {
namespace {

// These never copy, and allocate nothing.
const std::set<std::string>& views() {
  static const std::set<std::string> names{"aten::alias",  "aten::detach",    "aten::expand",    "aten::permute",
                                           "aten::select", "aten::slice",     "aten::squeeze",   "aten::t",
                                           "aten::view",   "aten::transpose", "aten::unsqueeze"};
  return names;
}

}  // namespace

void hand_out(const std::vector<Weight>& weights, const at::Tensor& tensor) {
  for (const Weight& each : weights) {
    if (each.tensor.is_alias_of(tensor)) each.packed->stop();
  }
}

std::shared_ptr<graph::PackedWeights> Weights::of(const graph::Values& weights, const graph::OperatorStep& step) {
  std::vector<int64_t> key;
  for (const c10::IValue& each : weights) {
    const at::Tensor& matrix = each.toTensor();
    key.push_back(reinterpret_cast<int64_t>(matrix.const_data_ptr()));
    key.insert(key.end(), matrix.sizes().begin(), matrix.sizes().end());
    key.insert(key.end(), matrix.strides().begin(), matrix.strides().end());
  }
  if (step.handle.operator_name().name == "aten::convolution") {  // whether it is transposed, and groups: other matrices
    for (const size_t argument : {size_t{6}, size_t{8}}) {
      const c10::IValue& value = step.arguments[argument].constant;  // None: one that each call may choose
      key.push_back(value.isBool() ? value.toBool() : value.isInt() ? value.toInt() : -1 - static_cast<int64_t>(all_.size()));
    }
  }
  auto& packed = known_[key];
  if (packed == nullptr) packed = std::make_shared<graph::PackedWeights>();
  for (const c10::IValue& each : weights) all_.push_back({each.toTensor(), packed});
  return packed;
}

Constants::Constants(graph::Values given) : known_(std::move(given)) {
  for (const c10::IValue& value : known_) {
    behind_.push_back(value.isTensor() ? std::vector<at::Tensor>{value.toTensor()} : std::vector<at::Tensor>());
  }
}

void Constants::add(size_t count, const std::vector<size_t>& aliased) {
  std::vector<at::Tensor> found;
  for (const size_t value : aliased) found.insert(found.end(), behind_[value].begin(), behind_[value].end());
  known_.resize(known_.size() + count);
  behind_.resize(known_.size(), found);
}

void Constants::set_last(const at::Tensor& constant) {
  known_.back() = constant;
  behind_.back() = {constant};
}

graph::Values Constants::at(const std::vector<size_t>& values) const {
  graph::Values found;
  for (const size_t value : values) found.push_back(known_[value]);
  return found;
}

std::vector<size_t> aliased_by(const graph::OperatorStep& step) {
  const auto& returns = step.handle.schema().returns();
  const bool aliases = std::any_of(returns.begin(), returns.end(), [](const c10::Argument& each) { return each.alias_info() != nullptr; });
  return aliases ? graph::read_by(step) : std::vector<size_t>();
}

at::Tensor view_of_constants(const graph::OperatorStep& step, const Constants& constants, size_t values) {
  const auto read = graph::read_by(step);
  const auto is_constant = [&](size_t value) { return constants[value].isTensor(); };
  if (read.empty() || views().count(step.handle.operator_name().name) == 0) return {};
  if (!std::all_of(read.begin(), read.end(), is_constant)) return {};
  graph::Values given(values);
  for (const size_t value : read) given[value] = constants[value];
  const at::NoGradGuard no_grad;
  step.run(given);
  return given.back().toTensor();
}

}  // namespace fourfold::model
