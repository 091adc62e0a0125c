// The operators of a model file: which may be called, and their arguments, typed by the schemas of the torch that is here.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/Device.h>

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "json.h"
#include "operator_step.h"

namespace fourfold::model {

// What is known of a value before anything runs.
enum class ValueKind : uint8_t { tensor, tensors, integer, floating, boolean, number, other };

const char* name_of(ValueKind kind);

// Where a file is loaded to, and what the caller allows.
struct Surroundings {
  c10::Device device;
  std::set<std::string> namespaces;  // of operators
};

// An operator by its name with overload, such as aten::add.Tensor. Throws Refused for operators that this torch doesn't have, of
// namespaces that aren't allowed, that change tensors in place except aten::copy_, and of torch's own those that read files or
// memory which belongs to nothing in the model.
c10::OperatorHandle operator_of(const std::string& name, const Surroundings& surroundings);

// arguments: an object of those by name that aren't the schema's defaults. known: the kinds of the values so far.
OperatorStep operator_step_of(
    const c10::OperatorHandle& handle, const Json& arguments, const std::vector<ValueKind>& known,
    const Surroundings& surroundings);

// Of an operator's results, in order.
std::vector<ValueKind> results_of(const c10::OperatorHandle& handle);

}  // namespace fourfold::model
