#include <fourfold/model.h>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <stdexcept>

#include "../graph/values.h"
#include "implementation.h"

namespace fourfold {

Stream::Stream(Model model, const std::map<std::string, at::Tensor>& first) : model_(std::move(model)) {
  const auto& own = *model_.implementation_;
  const auto& arguments = own.signature->arguments();
  if (own.state.empty()) {
    throw std::invalid_argument("stream: expected a model that was saved with its state: fourfold.save(program, path, state={...})");
  }
  for (const auto& [argument, result] : own.state) {
    const auto found = first.find(arguments[argument].name);
    first_.push_back(found == first.end() ? at::Tensor() : found->second);
  }
  for (const auto& [name, tensor] : first) {
    const auto has_name = [&](const auto& each) { return arguments[each.first].name == name; };
    if (std::none_of(own.state.begin(), own.state.end(), has_name)) {
      throw std::invalid_argument("stream: expected the name of a state, but got " + model::shown(name));
    }
  }
}

std::vector<c10::IValue> Stream::operator()(std::vector<c10::IValue> inputs) {
  const auto& own = *model_.implementation_;
  const size_t arguments = own.signature->arguments().size();
  if (inputs.size() + own.state.size() != arguments) {
    throw std::invalid_argument("stream: expected " + std::to_string(arguments - own.state.size()) + " arguments, but got " +
                                std::to_string(inputs.size()));
  }
  std::vector<c10::IValue> given;
  auto input = inputs.begin();
  for (size_t k = 0; k < arguments; ++k) given.push_back(own.is_state(k) ? c10::IValue() : std::move(*input++));
  if (state_.empty()) begin(given);
  for (size_t k = 0; k < state_.size(); ++k) given[own.state[k].first] = state_[k];
  const std::vector<c10::IValue> results = model_(std::move(given));
  std::vector<bool> is_kept(results.size());
  for (size_t k = 0; k < own.state.size(); ++k) {
    const int64_t result = own.state[k].second;
    if (result < 0) continue;
    state_[k] = results[static_cast<size_t>(result)].toTensor();
    is_kept[static_cast<size_t>(result)] = true;
  }
  std::vector<c10::IValue> others;
  for (size_t k = 0; k < results.size(); ++k) {
    if (!is_kept[k]) others.push_back(results[k]);
  }
  return others;
}

std::vector<std::string> Stream::arguments() const {
  std::vector<std::string> names = model_.arguments();
  size_t k = 0;
  const auto is_state = [&](const std::string&) { return model_.implementation_->is_state(k++); };
  names.erase(std::remove_if(names.begin(), names.end(), is_state), names.end());
  return names;
}

// Dynamic sizes of the state follow from those of the other arguments.
void Stream::begin(const std::vector<c10::IValue>& given) {
  const auto& own = *model_.implementation_;
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> state;
  for (size_t k = 0; k < own.state.size(); ++k) {
    state.push_back(first_[k].defined() ? first_[k].clone() : own.signature->zeros(own.state[k].first, given));
  }
  state_ = std::move(state);
}

void Stream::reset(const at::Tensor& streams, int64_t dim) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> state;
  for (size_t k = 0; k < state_.size(); ++k) {
    const at::Tensor& now = state_[k];
    const bool has_dim = dim >= -now.dim() && dim < now.dim();
    if (streams.dim() != 1 || streams.scalar_type() != at::kBool || !has_dim || now.size(dim) != streams.size(0)) {
      throw std::invalid_argument("reset: expected streams to be bool and to have one element for each of the sizes " +
                                  graph::text_of(now.sizes()) + " of a state in dimension " + std::to_string(dim) + ", but got " +
                                  model::name_of(streams.scalar_type()) + " " + graph::text_of(streams.sizes()));
    }
    std::vector<int64_t> shape(static_cast<size_t>(now.dim()), 1);
    shape[static_cast<size_t>(dim < 0 ? dim + now.dim() : dim)] = streams.size(0);
    state.push_back(at::where(streams.view(shape), first_[k].defined() ? first_[k] : at::zeros_like(now), now));
  }
  state_ = std::move(state);
}

std::vector<std::pair<std::string, at::Tensor>> Stream::state() const {
  const auto& own = *model_.implementation_;
  std::vector<std::pair<std::string, at::Tensor>> found;
  for (size_t k = 0; k < state_.size(); ++k) found.emplace_back(own.signature->arguments()[own.state[k].first].name, state_[k]);
  return found;
}

}  // namespace fourfold
