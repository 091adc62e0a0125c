// How an operator's backward is called: its arguments and results are derived from the names in the schemas of NAME and
// NAME_backward. Part of fourfold/autograd.h.
//
//   NAME_backward takes, in this order
//     grad, or grad_OUTPUT             the gradient of the first output, or of OUTPUT
//     any argument of NAME             saved by the forward
//     any output of NAME               saved by the forward
//     output_mask                      for each result, or each element of a list, whether it is needed
//   NAME_backward returns
//     grad_ARGUMENT                    the gradient of ARGUMENT, a list if ARGUMENT is one
//   Differentiable outputs come first. The others are saved for the backward only.
//
// The exception is axpby: it has no backward operator. Its gradient is a scaled copy and needs no saved tensors.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace fourfold {
namespace gradients {

using c10::OperatorHandle;

// Where an argument of a backward operator comes from, and its index among the forward's outputs or arguments.
struct Source {
  enum Kind : uint8_t { gradient, tensor, constant, output, mask } kind;
  size_t place;
};

struct Rule {
  std::string name;
  size_t arguments;
  size_t outputs;
  std::vector<size_t> differentiable;      // arguments that have a gradient, in the order of the backward's results
  size_t differentiable_outputs;           // the first outputs, up to this number
  std::optional<OperatorHandle> backward;  // none for axpby
  std::vector<Source> sources;             // one for each argument of the backward
};

inline Rule rule_of(const std::string& name) {
  auto& dispatcher = c10::Dispatcher::singleton();
  const OperatorHandle forward = dispatcher.findSchemaOrThrow(("fourfold::" + name).c_str(), "");
  const auto& arguments = forward.schema().arguments();
  const auto& outputs = forward.schema().returns();
  Rule rule{name, arguments.size(), outputs.size(), {}, 0, std::nullopt, {}};
  const auto find = [](const std::string& called, const std::vector<c10::Argument>& among) {
    return static_cast<size_t>(
        std::find_if(among.begin(), among.end(), [&](const auto& one) { return one.name() == called; }) - among.begin());
  };
  const auto place_of = [&](const std::string& called, const std::vector<c10::Argument>& among) {
    const size_t place = find(called, among);
    if (place == among.size()) throw std::logic_error(name + "_backward: nothing of " + name + " is called " + called);
    return place;
  };
  rule.backward = dispatcher.findSchema({"fourfold::" + name + "_backward", ""});
  if (!rule.backward) {
    rule.differentiable = {place_of("x", arguments), place_of("y", arguments)};
    rule.differentiable_outputs = 1;
    return rule;
  }
  const std::string prefix = "grad_";
  for (const auto& result : rule.backward->schema().returns()) {
    rule.differentiable.push_back(place_of(result.name().substr(prefix.size()), arguments));
  }
  for (const auto& argument : rule.backward->schema().arguments()) {
    const std::string& called = argument.name();
    if (called == "output_mask") {
      rule.sources.push_back({Source::mask, 0});
    } else if (called == "grad" || called.rfind(prefix, 0) == 0) {
      const size_t place = called == "grad" ? 0 : place_of(called.substr(prefix.size()), outputs);
      rule.sources.push_back({Source::gradient, place});
      rule.differentiable_outputs = std::max(rule.differentiable_outputs, place + 1);
    } else if (const size_t output = find(called, outputs); output < outputs.size()) {
      rule.sources.push_back({Source::output, output});
    } else {
      const size_t place = place_of(called, arguments);
      if (!rule.sources.empty() && rule.sources.back().kind == Source::output) {
        throw std::logic_error(name + "_backward: " + called + " should come before the outputs");
      }
      const bool tensors = arguments[place].type()->str().find("Tensor") != std::string::npos;
      rule.sources.push_back({tensors ? Source::tensor : Source::constant, place});
    }
  }
  return rule;
}

}  // namespace gradients
}  // namespace fourfold
