#include <fourfold/model.h>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <stdexcept>

#include "../graph/values.h"
#include "implementation.h"

namespace fourfold {
namespace {

bool is_among(const at::Tensor& tensor, const std::vector<c10::IValue>& values) {
  return std::any_of(values.begin(), values.end(), [&](const c10::IValue& value) {
    return value.isTensor() && value.toTensor().defined() && value.toTensor().is_alias_of(tensor);
  });
}

}  // namespace

Stream::Stream(Model model, const std::map<std::string, at::Tensor>& first)
    : model_(std::move(model)), mutex_(std::make_unique<std::mutex>()) {
  const auto& own = *model_.implementation_;
  if (own.state.empty()) {
    throw std::invalid_argument("stream: expected a model that was saved with its state: fourfold.save(program, path, state={...})");
  }
  first_.resize(own.state.size());
  for (const auto& [name, tensor] : first) first_[place_of(name)] = tensor.clone();
}

size_t Stream::place_of(const std::string& name) const {
  const auto& own = *model_.implementation_;
  std::string known;
  for (size_t k = 0; k < own.state.size(); ++k) {
    const std::string& each = own.signature->arguments()[own.state[k].first].name;
    if (each == name) return k;
    known += (known.empty() ? "" : ", ") + each;
  }
  throw std::invalid_argument("stream: expected the name of a state, " + known + ", but got " + model::shown(name));
}

std::vector<c10::IValue> Stream::operator()(std::vector<c10::IValue> inputs) {
  const std::scoped_lock lock(*mutex_);
  const auto& own = *model_.implementation_;
  const size_t arguments = own.signature->arguments().size();
  if (inputs.size() + own.state.size() != arguments) {
    throw std::invalid_argument("stream: expected " + std::to_string(arguments - own.state.size()) + " arguments, but got " +
                                std::to_string(inputs.size()));
  }
  std::vector<c10::IValue> given;
  auto input = inputs.begin();
  for (size_t k = 0; k < arguments; ++k) given.push_back(own.is_state(k) ? c10::IValue() : std::move(*input++));
  std::vector<at::Tensor> state = state_.empty() ? begun(given) : state_;
  for (size_t k = 0; k < state.size(); ++k) given[own.state[k].first] = state[k];
  const std::vector<c10::IValue> results = model_(given);
  return sorted(results, std::move(given), std::move(state));
}

// Keeps the state among the results, and returns the others. What is kept shares no memory with what anybody else has: a
// caller may write the next frame into the tensor of the last one.
std::vector<c10::IValue> Stream::sorted(
    const std::vector<c10::IValue>& results, std::vector<c10::IValue> taken, std::vector<at::Tensor> state) {
  const auto& own = *model_.implementation_;
  const at::NoGradGuard no_grad;
  std::vector<bool> is_kept(results.size());
  for (const auto& [argument, result] : own.state) {
    if (result >= 0) is_kept[static_cast<size_t>(result)] = true;
  }
  std::vector<c10::IValue> others;
  for (size_t k = 0; k < results.size(); ++k) {
    if (!is_kept[k]) others.push_back(results[k]);
  }
  for (size_t k = 0; k < state.size(); ++k) {
    if (own.state[k].second >= 0) continue;  // changed in place: it remains the stream's own
    for (c10::IValue& other : others) {
      if (other.isTensor() && other.toTensor().defined() && other.toTensor().is_alias_of(state[k])) other = other.toTensor().clone();
    }
  }
  taken.insert(taken.end(), others.begin(), others.end());
  for (size_t k = 0; k < state.size(); ++k) {
    if (own.state[k].second < 0) continue;
    const at::Tensor& kept = results[static_cast<size_t>(own.state[k].second)].toTensor();
    const auto is_in = [&](const auto& named) { return named.second.is_alias_of(kept); };
    const bool is_shared = is_among(kept, taken) || std::any_of(own.tensors.begin(), own.tensors.end(), is_in);
    state[k] = is_shared ? kept.clone() : kept;
    taken.emplace_back(state[k]);
  }
  state_ = std::move(state);
  return others;
}

std::vector<std::string> Stream::arguments() const {
  std::vector<std::string> names = model_.arguments();
  size_t k = 0;
  const auto is_state = [&](const std::string&) { return model_.implementation_->is_state(k++); };
  names.erase(std::remove_if(names.begin(), names.end(), is_state), names.end());
  return names;
}

// The first state, whose dynamic sizes follow from those of the other arguments.
std::vector<at::Tensor> Stream::begun(std::vector<c10::IValue> given) const {
  const auto& own = *model_.implementation_;
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> state;
  for (size_t k = 0; k < own.state.size(); ++k) {
    if (first_[k].defined()) given[own.state[k].first] = first_[k];
  }
  for (size_t k = 0; k < own.state.size(); ++k) {
    state.push_back(first_[k].defined() ? first_[k].clone() : own.signature->zeros(own.state[k].first, given));
  }
  return state;
}

void Stream::reset() {
  const std::scoped_lock lock(*mutex_);
  state_.clear();
}

void Stream::reset(const at::Tensor& streams) {
  const auto& own = *model_.implementation_;
  std::vector<size_t> arguments;
  for (const auto& [argument, result] : own.state) arguments.push_back(argument);
  const std::optional<std::vector<int64_t>> dims = own.signature->dimensions_of_streams(arguments);
  if (!dims.has_value()) {
    throw std::invalid_argument("reset: expected dim, the state's dimension that counts the streams, because no dynamic size of the "
                                "exported program tells it");
  }
  restart(streams, *dims);
}

void Stream::reset(const at::Tensor& streams, int64_t dim) { restart(streams, std::vector<int64_t>(first_.size(), dim)); }

void Stream::reset(const at::Tensor& streams, const std::map<std::string, int64_t>& dims) {
  if (dims.size() != first_.size()) throw std::invalid_argument("reset: expected a dimension for each state");
  std::vector<int64_t> found(first_.size());
  for (const auto& [name, dim] : dims) found[place_of(name)] = dim;
  restart(streams, found);
}

void Stream::restart(const at::Tensor& streams, const std::vector<int64_t>& dims) {
  const std::scoped_lock lock(*mutex_);
  if (!streams.defined() || streams.dim() != 1 || streams.scalar_type() != at::kBool) {
    throw std::invalid_argument("reset: expected streams to be bool and of one dimension");
  }
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> state;
  for (size_t k = 0; k < state_.size(); ++k) {
    const at::Tensor& now = state_[k];
    const int64_t dim = dims[k] < 0 ? dims[k] + now.dim() : dims[k];
    const std::string& name = model_.implementation_->signature->arguments()[model_.implementation_->state[k].first].name;
    if (dim < 0 || dim >= now.dim()) {
      throw std::invalid_argument("reset: expected " + name + " to have a dimension " + std::to_string(dims[k]) +
                                  " that counts the streams, but it has the sizes " + graph::text_of(now.sizes()));
    }
    if (now.size(dim) != streams.size(0)) {
      throw std::invalid_argument("reset: expected streams to have " + std::to_string(now.size(dim)) + " elements, as dimension " +
                                  std::to_string(dim) + " of " + name + ", but got " + std::to_string(streams.size(0)));
    }
    std::vector<int64_t> shape(static_cast<size_t>(now.dim()), 1);
    shape[static_cast<size_t>(dim)] = streams.size(0);
    const at::Tensor first = first_[k].defined() ? first_[k] : at::zeros_like(now);
    state.push_back(at::where(streams.to(now.device()).view(shape), first, now));
  }
  state_ = std::move(state);
}

std::vector<std::pair<std::string, at::Tensor>> Stream::state() const {
  const std::scoped_lock lock(*mutex_);
  const auto& own = *model_.implementation_;
  std::vector<std::pair<std::string, at::Tensor>> found;
  for (size_t k = 0; k < state_.size(); ++k) {
    found.emplace_back(own.signature->arguments()[own.state[k].first].name, state_[k].clone());
  }
  return found;
}

}  // namespace fourfold
