// The operators of a model file: which ones may be called, and their arguments, parsed by the schemas of the running
// torch.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/Device.h>

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "../graph/operator_step.h"
#include "json.h"

namespace fourfold::model {

using namespace graph;

// The static type of a value.
enum class ValueKind : uint8_t { tensor, tensors, integer, floating, boolean, number, other };

const char* name_of(ValueKind kind);

// The device that a file is loaded to, and what the caller allows.
struct Surroundings {
  c10::Device device;
  std::set<std::string> namespaces;  // allowed operator namespaces
};

// An operator by its name with overload, such as aten::add.Tensor. Throws Refused for operators that this torch doesn't
// have, whose namespace isn't allowed, or that modify tensors in place, and for torch's operators that may access files
// or memory outside the model, except those of permitted.h.
c10::OperatorHandle operator_of(const std::string& name, const Surroundings& surroundings);

// arguments: an object, by name, of the arguments that differ from the schema's defaults. known: the kinds of all
// earlier values.
OperatorStep operator_step_of(
    const c10::OperatorHandle& handle, const Json& arguments, const std::vector<ValueKind>& known,
    const Surroundings& surroundings);

// The kinds of an operator's results, in order.
std::vector<ValueKind> results_of(const c10::OperatorHandle& handle);

}  // namespace fourfold::model
